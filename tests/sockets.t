#!/usr/bin/env perl
# Processes that no MPI launcher has started: they meet by a file and exchange over TCP. The bits of
# thread ranks, on the CPU and on emulated GPUs; files of dead jobs, who is missing, who was lost.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Time::HiRes qw(time sleep);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);
my $meeting = "$dir/meeting";
$ENV{CUDA_EMU_NCCL_FOLDER} = $dir;

# Starts the processes of `numbers`, of `size`, `late` seconds apart, and waits for them: the statuses,
# and all that they printed.
sub start {
    my ($size, $command, $late, @numbers) = @_;
    my ($text, @pids, @statuses) = ('');
    for my $number (@numbers) {
        my $pid = fork // die "fork: $!";
        if (!$pid) {
            $ENV{FLATPEAK_JOB_FILE} = $meeting;
            ($ENV{RANK}, $ENV{WORLD_SIZE}) = ($number, $size);
            exec "exec timeout -k 5 60 $command >$dir/said.$number 2>&1";
        }
        push @pids, $pid;
        sleep $late;
    }
    for my $pid (@pids) {
        waitpid $pid, 0;
        push @statuses, $? >> 8 || $? & 127;
    }
    $text .= slurp("$dir/said.$_") for @numbers;
    return ("@statuses", $text);
}

sub job {
    my ($size, $command) = @_;
    return start($size, $command, 0, reverse 0 .. $size - 1);
}

# Digests, verdicts, peaks and traffic of a file of records, a line a case.
sub bits {
    my ($path) = @_;
    my @lines;
    for (split /\n/, slurp($path)) {
        my @facts = /"((?:impl|verdict|digest|tracked_peak_bytes|wire_bytes|logical_bytes)":
                       (?:"[^"]*"|\d+))/gx;
        push @lines, "@facts";
    }
    return join "\n", @lines;
}

my $case = '--impl llep,pipelined-llep --tokens 11 --hidden 16 --ffn 16 --experts 24 --topk 3 '
    . '--routing 95/4 --iters 1 --check reference';

sub test_bits {
    for my $size (2, 3) {
        system("$build/bin/dispatch $case --ranks $size --json $dir/threads-$size >/dev/null");
        my ($status, $text) = job($size, "$build/sockets/dispatch $case --json $dir/cpu-$size");
        my ($want, $got) = (bits("$dir/threads-$size"), bits("$dir/cpu-$size"));
        ok($status !~ /[1-9]/ && $want =~ /bitwise/ && $want eq $got && !-e $meeting,
            "$size processes: the bits of thread ranks; the file is gone",
            "exit $status\n$text\n$want\n$got");
    }
    my ($status, $text) = job(2, "$build/sockets/test_comm 2");
    ok($status eq '0 0' && 9 == (() = $text =~ /^ok \d/mg) && $text !~ /^not ok/m,
        'collectives over two processes of two ranks', "exit $status\n$text");
}

sub test_gpus {
    my $program = "$build/emu/sockets/dispatch";
    local $ENV{CUDA_EMU_DEVICES} = 2;
    unless (-x $program) {
        ok(1, 'NCCL without MPI # SKIP the emulator is not built here');
        return;
    }
    my ($status, $text) =
        job(2, "$program --device cuda --messages nccl $case --json $dir/cuda-2");
    my ($want, $got) = (bits("$dir/threads-2"), bits("$dir/cuda-2"));
    ok($status eq '0 0' && $want eq $got && slurp("$dir/cuda-2") =~ /"messages":"sockets"/,
        'NCCL without MPI: the bits of thread ranks', "exit $status\n$text\n$want\n$got");
}

my $idle = "$build/sockets/mpi_faults none";

sub test_meeting {
    my ($status, $text) = start(4, "$idle --timeout 1", 0, 2, 0);
    ok($status eq '3 3' && $text =~ /\Q$meeting\E: of 4 processes these have not come .* in 1 s: 1, 3$/m
            && $text =~ /process 2 did not find the others .*: process 0 was there, but not all others/
            && !-e $meeting,
        'processes that do not come are named when the time is over; the file is gone',
        "exit $status\n$text");
    ($status, $text) = start(2, "$idle --timeout 1", 0, 1);
    ok($status eq '3' && $text =~ /\Q$meeting\E: process 1 did not find .* in 1 s: it was not there/,
        'no file', "exit $status\n$text");
    # Of a job that is dead: nobody listens on port 9.
    my $stale = "flatpeak-job 1 - 2 00000000000000ff 9\n127.0.0.1\n";
    spew($meeting, $stale);
    ($status, $text) = start(2, "$idle --timeout=1", 0, 1);
    ok($status eq '3' && $text =~ /\Q$meeting\E.*: nobody listens where it says: its job has ended/,
        'the file of a dead job alone', "exit $status\n$text");
    spew($meeting, $stale);
    ($status, $text) = start(2, $idle, 0.3, 1, 0);
    ok($status eq '0 0' && $text =~ /group 3: fine/ && !-e $meeting,
        'the file of a dead job, read before it is replaced', "exit $status\n$text");
    spew($meeting, "something else\n");
    ($status, $text) = start(2, "$idle --timeout 1", 0, 1);
    ok($status eq '3' && $text =~ /\Q$meeting\E.*: it is not such a file/, 'another file',
        "exit $status\n$text");
    unlink $meeting;
    local $ENV{SLURM_JOB_ID} = 77;
    spew($meeting, $stale =~ s/ - / 76. /r);
    ($status, $text) = start(2, "$idle --timeout 1", 0, 1);
    ok($status eq '3' && $text =~ /\Q$meeting\E.*: it is of another job: 76\., 2 processes/,
        'the file of another job of Slurm', "exit $status\n$text");
    unlink $meeting;
}

sub test_faults {
    my %faults = (
        kill => qr/rank 2 on \S+ was killed by signal 9 .*phase: group 0/,
        loop => qr/rank 2 on \S+: rank \d waited 2\S* s for it in 'planned'; last: working/,
    );
    for my $fault (sort keys %faults) {
        my ($status, $text) = job(4, "$build/sockets/mpi_faults $fault");
        my $found = left_behind("$build/sockets/mpi_faults $fault");
        ok($status !~ /\b0\b/ && $text =~ $faults{$fault} && $found eq '',
            "$fault: named, all have ended", "exit $status\n$text$found");
    }
    for my $fault ('memory', 'size') {
        my ($status, $text) = job(4, "$build/sockets/mpi_faults $fault");
        ok($status eq '1 1 1 1' && 2 == (() = $text =~ /group [02]: rank \d, status [13]/g)
                && 2 == (() = $text =~ /group [13]: fine/g),
            "$fault: fails its group on all ranks; the next one is fine", "exit $status\n$text");
    }
}

test_bits();
test_gpus();
test_meeting();
test_faults();
done();
