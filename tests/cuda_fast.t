#!/usr/bin/env perl
# Products on the fast path, as a user meets them on the emulated device: it is what BF16 problems are
# timed on by default, bounded against the exact path, which is bitwise; schedules that cut the same rows
# otherwise have the same bits; and a library whose rows depend on the batch is refused, or found.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);

skip_all('the emulator is not built here (make showconfig)') unless -x "$build/emu/bin/dispatch";

# The exit status of a program on the emulated device, what it printed, and its records.
sub run {
    my ($program, $arguments, %environment) = @_;
    local %ENV = (%ENV, %environment);
    my $records = "$dir/records.json";
    unlink $records;
    my $text = `$build/emu/bin/$program --device cuda --iters 1 --warmup 0 $arguments --json $records 2>&1`;
    my $status = $? >> 8;
    my @records;
    if (open my $file, '<', $records) {
        chomp(@records = <$file>);
    }
    return ($status, $text, @records);
}

# Verdicts and digests of a record's outputs: "NAME verdict digest exact-verdict exact-digest".
sub outputs {
    my ($record) = @_;
    my %found;
    while ($record =~ /"(\w+)":\{"verdict":"([\w-]+)","digest":"(\w+)",
                       "exact":\{"verdict":"([\w-]+)","digest":"(\w+)"\}/gx) {
        $found{$1} = {verdict => $2, digest => $3, exact => $4, exact_digest => $5};
    }
    return \%found;
}

sub all_bounded {
    my (@records) = @_;
    for my $record (@records) {
        my $outputs = outputs($record);
        return 0 unless %$outputs && $record =~ /"gemm":"fast"/;
        return 0 if grep { $_->{verdict} ne 'bounded' || $_->{exact} ne 'bitwise' } values %$outputs;
        return 0 unless $record =~ /"outside":0/ && $record =~ /"worst":0\.\d/;
    }
    return @records > 0;
}

# Of one tensor, all digests are the same.
sub same {
    my ($tensor, @records) = @_;
    my %digests = map { outputs($_)->{$tensor}{digest} // '?' => 1 } @records;
    return keys %digests == 1 && !$digests{'?'};
}

# ---- the default, and its verdict --------------------------------------------------------------

my $vocab = '--dtype bf16 --tokens 9 --hidden 64 --vocab 40 --chunk 4 --ranks 2';
my ($status, $text, @records) = run('vocab', $vocab);
ok($status == 0 && @records == 4 && all_bounded(@records) && $text =~ /^.*bf16 .* fast .*bounded, at most/m,
    'vocab: BF16 products are fast unless it is said otherwise, bounded against an exact path that is bitwise',
    $text);
ok(same('loss', @records) && same('max', @records) && same('log_z', @records),
    'vocab: whole, sharded, in chunks and in tiles have the same loss', $text);
ok((grep { outputs($_)->{dW}{digest} ne outputs($_)->{dW}{exact_digest} } @records) > 0,
    'vocab: and not the bits of the exact path');
ok($text =~ /products on tensor cores: \d+$/m && $text !~ /stayed exact/,
    'vocab: no product of a BF16 problem stays exact, the residuals\' included', $text);

my $dispatch = '--dtype bf16 --tokens 19 --hidden 24 --ffn 16 --experts 4 --topk 2 --ranks 2 '
    . '--impl llep,alltoall,pipelined-llep --chunk-budget 8,16,64 --min-gemm 4';
($status, $text, @records) = run('dispatch', $dispatch);
my %chunks = map { /"chunks":(\d+)/ ? ($1 => 1) : () } grep { /pipelined-llep/ } @records;
ok($status == 0 && @records == 5 && all_bounded(@records), 'dispatch: bounded at every chunk count', $text);
ok(keys %chunks == 3 && same('Y', @records) && same('dX', @records) && same('dw', @records),
    'dispatch: three chunk counts, unchunked and all at once have the same bits', $text);

($status, $text, @records) = run('dispatch', "$dispatch --check sample:3", CUDA_EMU_DEVICES => 2);
ok($status == 0 && all_bounded(@records) && $text =~ /bounded \(sample:3\)/,
    'dispatch: a sample, a GPU for each rank', $text);

($status, $text, @records) = run('checkpoint',
    '--dtype bf16 --layers 2 --tokens 9 --hidden 24 --ffn 16 --host-budget 0,3000 --steps 2');
ok($status == 0 && all_bounded(@records) && same('Y', @records) && same('dWup', @records),
    'checkpoint: bounded, and every way to keep boundaries has the same bits', $text);

# ---- what is not fast --------------------------------------------------------------------------

($status, $text, @records) = run('vocab', "$vocab --impl chunked-tokens --gemm exact");
ok($status == 0 && $records[0] =~ /"gemm":"exact"/ && $records[0] =~ /"verdict":"bitwise"/
        && $records[0] !~ /"products"/,
    'vocab --gemm exact: bitwise, and the record says exact', $text);
($status, $text, @records) = run('vocab', '--dtype f32 --tokens 9 --hidden 16 --vocab 24 --impl ring-dtp');
ok($status == 0 && $records[0] !~ /"gemm"/ && $records[0] =~ /"verdict":"bitwise"/,
    'FP32 problems have one path', $text);
($status, $text, @records) = run('vocab', "$vocab --impl chunked-tokens --check off");
ok($status == 0 && $records[0] =~ /"gemm":"fast"/ && $records[0] =~ /"verdict":"off"/,
    '--check off: the fast path alone', $text);
($status, $text, @records) =
    run('vocab', '--dtype bf16 --tokens 9 --hidden 17 --vocab 24 --impl materialized,chunked-tokens --chunk 4');
ok($status == 0 && all_bounded(@records) && $text =~ /rows that are no multiples of 16 bytes/,
    'rows of odd widths go to our own kernel, and it is said', $text);

# ---- a library that does not keep its promise --------------------------------------------------

($status, $text, @records) = run('vocab', "$vocab --gemm fast", CUDA_EMU_CUBLASLT => 20);
ok($status == 3 && !@records && $text =~ /--gemm: fast is not to be had here: a row's bits depend/,
    'a library whose rows depend on the batch is refused, with the reason and exit 3', $text);
($status, $text, @records) = run('vocab', "$vocab --impl chunked-tokens", CUDA_EMU_CUBLASLT => 20);
ok($status == 0 && $text =~ /^products are exact: .* a row's bits depend/m && $records[0] =~ /"gemm":"exact"/,
    'unasked for, products are exact then, and a line says why', $text);
($status, $text, @records) = run('vocab', $vocab, CUDA_EMU_CUBLASLT => 5);
ok($status == 1 && $text =~ /MISMATCH/ && $text =~ /loss: bits on the fast path are not those of materialized/,
    'what the proof at the start does not meet, the comparison of schedules finds', $text);

# ---- the trace is of what is timed -------------------------------------------------------------

($status, $text) = run('vocab', "$vocab --impl chunked-tokens --trace $dir/trace.json");
my $trace = do { local $/; open my $file, '<', "$dir/trace.json" or die; <$file> };
my @products = $trace =~ /"name":\s*"gemm"/g;
my ($made) = $text =~ /products on tensor cores: (\d+)/;
ok($status == 0 && @products == $made, 'a trace shows one pass', scalar @products . " products\n$text");

done();
