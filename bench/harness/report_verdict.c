/* The end of a case's line, and the lines under it. */
#include <string.h>
#include "bench/harness/products.h"
#include "bench/harness/report.h"

/* "bitwise", "bitwise (sample:64)", "bitwise, dx dw in declared order" */
void report_print_verdict(FILE *out, const struct case_result *result)
{
    enum verdict verdict = case_verdict(result);
    fputs(verdict == VERDICT_MISMATCH ? "MISMATCH" : verdict_name(verdict), out);
    if (result->against[0] && strcmp(result->against, "reference") &&
        strcmp(result->against, verdict_name(verdict)))
        fprintf(out, " (%s)", result->against);
    int declared = 0, skipped = 0;
    for (int i = 0; i < result->tensor_count && verdict != VERDICT_OFF; i++) {
        if (result->tensors[i].verdict == VERDICT_OFF)
            fprintf(out, "%s%s", skipped++ ? " " : ", ", result->tensors[i].name);
    }
    if (skipped)
        fputs(" not compared", out);
    if (verdict == VERDICT_BOUNDED && result->products.present) {
        char text[64];
        products_text(&result->products, text, sizeof text);
        fprintf(out, ", %s", text);
    }
    for (int i = 0; i < result->tensor_count; i++) {
        const struct case_tensor *tensor = &result->tensors[i];
        if (tensor->declared_order && (tensor->verdict != VERDICT_OFF || verdict == VERDICT_OFF))
            fprintf(out, "%s%s", declared++ ? " " : ", ", result->tensors[i].name);
    }
    if (declared)
        fputs(" in declared order", out);
}

void report_print_faults(FILE *out, const struct case_result *result, const char *memory_fault)
{
    if (result->status != CASE_OK)
        fprintf(out, "    %s\n", result->reason);
    for (int i = 0; i < result->tensor_count; i++) {
        if (result->tensors[i].verdict == VERDICT_MISMATCH)
            fprintf(out, "    %s\n", result->tensors[i].fault);
    }
    if (*memory_fault)
        fprintf(out, "    memory: %s\n", memory_fault);
    if (result->note[0])
        fprintf(out, "    %s\n", result->note);
    if (result->products.present) {
        char text[160];
        products_note(&result->products, text, sizeof text);
        fprintf(out, "    %s\n", text);
    }
}
