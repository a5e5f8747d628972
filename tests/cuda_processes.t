#!/usr/bin/env perl
# GPU ranks in several processes, on the emulator: the digests, traffic and peaks of thread ranks on
# the CPU whatever carries the messages, which GPU each rank has, and every way to fail.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Time::HiRes qw(time sleep);
use FindBin;
use lib $FindBin::Bin;
use Launched;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);
my @launched = grep { $_->[1] } @libraries;

skip_all((@launched ? 'the emulator is not built here' : 'no MPI in this build') . ' (make showconfig)')
    unless -x "$build/emu/bin/dispatch" && @launched;

$ENV{CUDA_EMU_NCCL_FOLDER} = $dir; # a job that was killed leaves its messages there

# Runs a command, of at most 60 s; exit status, what it printed, seconds.
sub run {
    my ($command) = @_;
    my $begin = time;
    my $text = `timeout -k 5 60 $command 2>&1`;
    return ($? >> 8 || $? & 127, $text, time - $begin);
}

my ($library, $launcher) = @{$launched[0]};

sub job {
    my ($processes, $command) = @_;
    return run("$launcher -np $processes $command");
}

# What must not depend on where the ranks are: digests, verdicts, peaks, traffic; a line a case.
sub bits {
    my ($path) = @_;
    my @lines;
    for (split /\n/, slurp($path)) {
        my ($impl) = /"impl":"([^"]+)"/;
        my @facts = /"((?:verdict|digest|tracked_peak_bytes|wire_bytes|logical_bytes|messages)":
                       (?:"[0-9a-z]+"|\d+))/gx;
        push @lines, join ' ', $impl, grep { !/^messages":"/ } @facts;
    }
    return join "\n", @lines;
}

# ---- the same bits

# `gpus` of the machine, `processes` of `each` ranks; the device that the record names, as `label`.
sub test_bits {
    my ($program, $gpus, $processes, $each, $options, $label) = @_;
    my $ranks = $processes * $each;
    my ($threads, $got) = ("$dir/$program-$ranks", "$dir/got");
    run("$build/bin/$program $cases{$program} --ranks $ranks --json $threads") unless -e $threads;
    unlink $got;
    local $ENV{CUDA_EMU_DEVICES} = $gpus;
    my $path = $library eq $launched[0][0] ? 'bin' : $library;
    my ($status, $text) = job($processes, "$build/emu/$path/$program --device cuda $cases{$program} "
        . "--ranks-per-process $each $options --json $got");
    my ($want, $bits, $record) = (bits($threads), bits($got), slurp($got));
    ok($status == 0 && $want =~ /digest/ && ($program eq 'train' || $want =~ /bitwise/)
            && $want eq $bits && $record =~ /"device":"$label"/,
        "$library: $program, $processes x $each ranks, $gpus GPU(s), $options: the bits of the CPU",
        "exit $status\n$text\n$want\n$bits");
    return $record;
}

my $emulated = 'cuda:CUDA emulator on a CPU';

sub test_all_bits {
    test_bits($_, 2, 2, 1, '--messages nccl', $emulated) for sort keys %cases;
    my $record = test_bits('dispatch', 4, 4, 1, '', $emulated);
    my @gpus = $record =~ /"gpu":\{"ordinal":(\d),"bus":"0000:0(\d):00\.0"\}/g;
    ok("@gpus[0 .. 7]" eq '0 0 1 1 2 2 3 3', 'each rank has the GPU of its local rank', "@gpus");
    ok($record =~ /"messages":"nccl"/, 'the record says that NCCL was taken', $record);
    local $ENV{CUDA_EMU_STREAMS} = 'random:5';
    test_bits('vocab', 4, 2, 2, '--messages nccl', $emulated);
    test_bits('dispatch', 2, 2, 2, '', "$emulated shared-gpu");
    $record = test_bits('vocab', 1, 2, 1, '', "$emulated shared-gpu");
    ok($record =~ /"messages":"host copies"/, 'or copies by way of the hosts', $record);
}

# The fast path of BF16 problems: bounded in every process, with the bits of threads.
sub test_fast {
    local $ENV{CUDA_EMU_DEVICES} = 2;
    my $options = '--device cuda --dtype bf16 --tokens 7 --hidden 64 --vocab 40 --impl vocab-parallel '
        . '--iters 1 --warmup 0 --messages nccl';
    unlink "$dir/threads", "$dir/got";
    run("$build/emu/bin/vocab $options --ranks 2 --json $dir/threads");
    my ($status, $text) = job(2, "$build/emu/bin/vocab $options --json $dir/got");
    my ($want, $bits) = (bits("$dir/threads"), bits("$dir/got"));
    ok($status == 0 && $want =~ /bounded/ && $want eq $bits
            && slurp("$dir/got") =~ /"gemm":"fast"/,
        'the fast path in two processes: bounded, the bits of two threads', "exit $status\n$text\n$want\n$bits");
}

# A launcher that shows each process one GPU, which it then calls its first.
sub test_visible {
    local $ENV{CUDA_EMU_DEVICES} = 2;
    open my $script, '>', "$dir/bound" or die "$dir/bound: $!";
    print $script "#!/bin/sh\nCUDA_EMU_VISIBLE=\${OMPI_COMM_WORLD_LOCAL_RANK:-\$MPI_LOCALRANKID} "
        . "exec \"\$@\"\n";
    close $script;
    chmod 0755, "$dir/bound";
    unlink "$dir/got";
    my ($status, $text) = job(2, "$dir/bound $build/emu/bin/optimizer --device cuda "
        . "$cases{optimizer} --messages nccl --json $dir/got");
    my $record = slurp("$dir/got");
    my @gpus = $record =~ /"gpu":\{"ordinal":(\d),"bus":"0000:0(\d):00\.0"\}/g;
    ok($status == 0 && "@gpus[0 .. 3]" eq '0 0 0 1' && $record !~ /shared-gpu/,
        'GPUs that only one process sees are told apart', "exit $status\n$text\n@gpus");
}

# Every byte of random exchanges, on duplicates and subsets.
sub test_messages {
    for ([4, 1], [2, 2]) {
        my ($processes, $each) = @$_;
        my ($status, $text) = job($processes, "$build/emu/tests/cuda_messages $each");
        ok($status == 0 && 2 == (() = $text =~ /^ok \d/mg) && $text !~ /^not ok/m,
            "every byte between $processes x $each ranks, on subsets too", "exit $status\n$text");
    }
}

# ---- what is refused, and what goes wrong

my $small = '--impl llep --tokens 5 --hidden 16 --ffn 16 --experts 4 --topk 2 --iters 1';

sub test_refusals {
    local $ENV{CUDA_EMU_DEVICES} = 1;
    my ($status, $text) = job(2, "$build/emu/bin/dispatch --device cuda $small --messages nccl");
    my $why = qr/rank 0 and rank 1 are on the same GPU, 0000:00:00\.0 of \S+: NCCL wants a GPU/;
    ok($status == 3 && $text =~ /$why for every rank;.* --messages copies/,
        'NCCL with two processes on a GPU: refused, says what to do', "exit $status\n$text");
    local $ENV{CUDA_EMU_DEVICES} = 0;
    ($status, $text) = job(2, "$build/emu/bin/dispatch --device cuda $small");
    ok($status == 3 && 1 == (() = $text =~ /no CUDA device here/g), 'no GPU: said once',
        "exit $status\n$text");
}

sub fails {
    my ($fault, $pattern) = @_;
    my $command = "$build/emu/tests/mpi_faults '$fault' nccl";
    my ($status, $text, $seconds) = job(4, $command);
    my $found = left_behind("$build/emu/tests/mpi_faults $fault nccl");
    ok($status != 0 && $text =~ $pattern && $seconds < 30 && $found eq '',
        "$fault: named, the job ended, nobody left", "exit $status after $seconds s\n$text$found");
}

sub recovers {
    my ($fault, $messages, $pattern) = @_;
    my ($status, $text) = job(4, "$build/emu/tests/mpi_faults '$fault' $messages");
    ok($status == 1 && $text =~ /group 0: rank \d, $pattern/ && $text =~ /group 2: rank \d, $pattern/
            && 2 == (() = $text =~ /group [13]: fine/g),
        "$fault, $messages: fails its group on all ranks; the next one is fine",
        "exit $status\n$text");
}

sub test_faults {
    local $ENV{CUDA_EMU_DEVICES} = 4;
    my $at = qr/mpi_faults: rank 2 on \S+/;
    fails('kill', qr/$at was killed by signal 9 .*phase: group 0/);
    fails('loop', qr/$at: rank \d waited 2\S* s for it in 'planned'; last: working, phase: group 0/);
    recovers('memory', 'nccl', qr/status 1: .*too much.* asked for 1099511627776/);
    recovers('leave', 'nccl', qr/status 3: rank 2 left while rank \d waits for it/);
    recovers('size', 'nccl', qr/status 3: exchange 'planned': rank \d sends rank \d \d+ bytes in part 0/);
    recovers('label', 'nccl', qr/status 3: exchange \d of a communicator is '[^']+' on rank/);
    recovers('size', 'copies', qr/status 3: exchange 'planned': rank \d sends rank \d \d+ bytes/);
}

# An error of NCCL, in a process of its own and between two.
sub test_nccl_fails {
    local $ENV{CUDA_EMU_DEVICES} = 2;
    for my $streams ('late', 'random:2') {
        local $ENV{CUDA_EMU_STREAMS} = $streams;
        for my $group (1, 2, 5, 11) {
            local $ENV{CUDA_EMU_NCCL_FAILS} = $group;
            my ($status, $text) = run("$build/emu/bin/dispatch --device cuda $small --ranks 2");
            ok($status == 3 && $text =~ /rank \d: unhandled system error .*nccl\.cu:\d+, rank \d/
                    && $text !~ /cuda emulator/,
                "group $group of NCCL fails, streams $streams: an error and nothing else",
                "exit $status\n$text");
        }
    }
    local $ENV{CUDA_EMU_NCCL_FAILS} = 3;
    my ($status, $text) = job(2, "$build/emu/bin/dispatch --device cuda $small");
    ok($status == 3 && $text =~ /rank \d: unhandled system error .*nccl\.cu:\d+, rank \d/
            && $text !~ /cuda emulator/,
        'group 3 of NCCL fails between processes: an error and nothing else', "exit $status\n$text");
}

test_all_bits();
test_fast();
test_visible();
test_messages();
test_refusals();
test_faults();
test_nccl_fails();
for my $other (@launched[1 .. $#launched]) {
    ($library, $launcher) = @$other;
    test_bits('dispatch', 2, 2, 1, '--messages nccl', $emulated) if -x "$build/emu/$library/dispatch";
}
done();
