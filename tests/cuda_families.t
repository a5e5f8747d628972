#!/usr/bin/env perl
# Every operator of every family on the emulated CUDA device, at small ragged shapes: each program
# is run, with exact products, on the CPU, on one GPU that all ranks share (messages by copies), and on a GPU for each rank
# (NCCL), with threads, blocks and streams in different orders. Each line must be bitwise against the
# reference, and digests of the outputs, peaks of memory and counts of messages the same on all.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);

skip_all('the emulator is not built here (make showconfig)') unless -x "$build/emu/bin/dispatch";

# Under the sanitizers, which take their time, each family has fewer ranks and one type.
my $sanitized = system("nm -D $build/emu/bin/dispatch | grep -q __asan_init") == 0;
my $all_types = $sanitized ? '--dtype bf16' : '--dtype all';
my %cases = (
    dispatch => [
        "--tokens 37 --hidden 20 --ffn 24 --experts 8 --topk 3 --routing zipf:1.2 --min-gemm 4 "
            . "--chunk-budget 16 --ranks 4 $all_types",
        '--tokens-per-rank 9,0 --hidden 17 --ffn 13 --experts 4 --topk 2 --routing uniform '
            . '--ranks 2 --streams serial',
    ],
    vocab => [
        '--tokens 19 --hidden 24 --vocab 2100 --move all --chunk 8 --ignored 0.2 --ranks '
            . ($sanitized ? 2 : 4) . " $all_types",
        '--tokens-per-rank 7,0 --hidden 9 --vocab 37 --ranks 2',
    ],
    checkpoint => [
        "--layers 3 --tokens 21 --hidden 24 --ffn 40 --ranks 1,2 --host-budget 0,3000,100000 "
            . "--steps 2 $all_types",
    ],
    optimizer => [
        '--params 5003 --bucket 1024 --slots 1,2,3 --ranks 1,2 --steps 3',
        '--params 5003 --bucket 1000 --ranks 1 --steps 2 --grad-scale 0.25 --clip 1.5',
    ],
);

# Where and in what orders; the first is what the others are compared with.
my @devices = (
    {name => 'the CPU', options => '--device cpu'},
    {
        name => 'a shared GPU', options => '--device cuda --messages copies',
        CUDA_EMU_DEVICES => 1, CUDA_EMU_ORDER => 'forward', CUDA_EMU_STREAMS => 'late',
    },
    {
        name => 'a GPU for each rank', options => '--device cuda --messages nccl',
        CUDA_EMU_DEVICES => 4, CUDA_EMU_ORDER => 'reverse', CUDA_EMU_STREAMS => 'random:1',
    },
);

# What must not depend on the device in a record: implementation, verdicts, digests, peak, messages.
sub summary {
    my ($record) = @_;
    my ($impl) = $record =~ /"impl":"([^"]*)"/;
    my @facts = $record =~ /"((?:verdict|digest|tracked_peak_bytes|increment_bytes|wire_bytes|
                               logical_bytes|messages)":(?:"[^"]*"|\d+))/gx;
    @facts = grep { !/^messages":"/ } @facts; # the option
    return "$impl " . join ' ', @facts;
}

# The summaries of one program's records on one device, and all that it printed.
sub run {
    my ($program, $arguments, $device) = @_;
    local %ENV = (%ENV, map { $_ => $device->{$_} } grep { /^CUDA_EMU/ } keys %$device);
    my $records = "$dir/records.json";
    unlink $records;
    my $options = $device->{options};
    $options .= ' --gemm exact' if $options =~ /cuda/ && $program ne 'optimizer';
    my $text = `$build/emu/bin/$program $arguments --iters 1 --warmup 0 $options --json $records 2>&1`;
    $text .= sprintf "exit %d\n", $? >> 8 if $?;
    return ($? == 0, $text, map { summary($_) } split /\n/, slurp($records));
}

sub compare {
    my ($program, $arguments) = @_;
    my @expected;
    for my $device (@devices) {
        my ($good, $text, @got) = run($program, $arguments, $device);
        @expected = @got unless @expected;
        my @bitwise = grep { /"?verdict":"bitwise"/ && !/verdict":"(?!bitwise)/ } @got;
        my @differ = grep { $got[$_] ne ($expected[$_] // '') } 0 .. $#got;
        ok($good && @got > 0 && @bitwise == @got && @got == @expected && !@differ,
            "$program on $device->{name}: " . scalar @got . " cases bitwise, as on the CPU",
            join "\n", $text, map { "got      $got[$_]\nexpected $expected[$_]" } @differ);
    }
}

for my $program (sort keys %cases) {
    compare($program, $_) for @{$cases{$program}};
}

# What --messages auto came to.
for my $case ([1, 2, 'copies'], [2, 2, 'nccl'], [1, 1, undef]) {
    my ($gpus, $ranks, $carrier) = @$case;
    local $ENV{CUDA_EMU_DEVICES} = $gpus;
    my $records = "$dir/taken.json";
    unlink $records;
    my $text = `$build/emu/bin/vocab --device cuda --impl ring-dtp --ranks $ranks --tokens 3 --hidden 5 --vocab 7 --iters 1 --warmup 0 --json $records 2>&1`;
    my ($taken) = slurp($records) =~ /"messages":"(copies|nccl|host copies)"/;
    ok($? == 0 && ($taken // '') eq ($carrier // ''),
        "$ranks ranks on $gpus GPU(s): messages by " . ($carrier // 'nothing, and no word of it'), $text);
}

# A device that is not there is one clear line and exit 3.
{
    local $ENV{CUDA_EMU_DEVICES} = 0;
    my $text = `$build/emu/bin/dispatch --tokens 4 --device cuda 2>&1`;
    my $status = $? >> 8;
    my @lines = grep { /CUDA|cuda/ && /no / } split /\n/, $text;
    ok($status == 3 && @lines == 1, 'without a GPU: exit 3 and one line', "exit $status\n$text");
}

done();
