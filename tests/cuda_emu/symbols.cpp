/* Names of kernels, from the program's own symbol table: for messages, and to tell which kernels a
 * program has run. A stripped program has none; addresses stand in their place. */
#include <cxxabi.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <map>
#include <set>
#include <string>
#include "tests/cuda_emu/emulator.h"

static std::set<const void *> executed;

static int first_base(struct dl_phdr_info *info, size_t, void *base)
{
    *(uintptr_t *)base = info->dlpi_addr; /* the program comes first */
    return 1;
}

/* The functions of the file, which is mapped at `file`. */
static void read_symbols(
    const char *file, uintptr_t base, std::map<const void *, std::string> *functions)
{
    const Elf64_Ehdr *header = (const Elf64_Ehdr *)file;
    const Elf64_Shdr *sections = (const Elf64_Shdr *)(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; i++) {
        if (sections[i].sh_type != SHT_SYMTAB)
            continue;
        const Elf64_Sym *symbols = (const Elf64_Sym *)(file + sections[i].sh_offset);
        const char *names = file + sections[sections[i].sh_link].sh_offset;
        for (size_t s = 0; s < sections[i].sh_size / sizeof *symbols; s++)
            if (ELF64_ST_TYPE(symbols[s].st_info) == STT_FUNC)
                (*functions)[(const void *)(base + symbols[s].st_value)] =
                    names + symbols[s].st_name;
    }
}

static std::map<const void *, std::string> read_program(void)
{
    std::map<const void *, std::string> functions;
    uintptr_t base = 0;
    struct stat state;
    int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return functions;
    dl_iterate_phdr(first_base, &base);
    if (!fstat(file, &state)) {
        void *mapped = mmap(NULL, (size_t)state.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (mapped != MAP_FAILED) {
            read_symbols((const char *)mapped, base, &functions);
            munmap(mapped, (size_t)state.st_size);
        }
    }
    close(file);
    return functions;
}

static const std::map<const void *, std::string> &functions(void)
{
    static const std::map<const void *, std::string> read = read_program();
    return read;
}

/* The name in the symbol table, NULL when there is none. */
static const char *mangled_name(const void *function)
{
    auto found = functions().find(function);
    return found == functions().end() ? NULL : found->second.c_str();
}

void symbol_name(const void *function, char *name, int size)
{
    int status = 0;
    const char *mangled = mangled_name(function);
    char *readable = mangled ? abi::__cxa_demangle(mangled, NULL, NULL, &status) : NULL;
    if (mangled)
        snprintf(name, (size_t)size, "%s", readable ? readable : mangled);
    else
        snprintf(name, (size_t)size, "%p", function);
    free(readable);
}

/* At the program's end: a line for each kernel that has run. */
static void write_coverage(void)
{
    FILE *file = fopen(emulator_settings()->coverage, "a");
    std::string lines;
    for (const void *kernel : executed)
        if (mangled_name(kernel))
            lines += std::string(mangled_name(kernel)) + "\n";
    if (!file || fwrite(lines.data(), 1, lines.size(), file) != lines.size() || fclose(file))
        perror("cuda emulator: CUDA_EMU_COVERAGE");
}

void note_execution(const void *kernel)
{
    if (!emulator_settings()->coverage)
        return;
    if (executed.empty())
        atexit(write_coverage);
    executed.insert(kernel);
}
