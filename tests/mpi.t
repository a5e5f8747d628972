#!/usr/bin/env perl
# The programs under a launcher, with every MPI library that is installed: the same bits as thread
# ranks, every fault named, nothing left behind; two emulated hosts where they can be made.
use strict;
use warnings;
use File::Spec;
use File::Temp qw(tempdir);
use Time::HiRes qw(time sleep);
use FindBin;
use lib $FindBin::Bin;
use Launched;
use Tap qw(skip done slurp left_behind);

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);
my $reported = ''; # by a sanitizer, since the last test

sub ok($$;$) {
    my ($good, $name, $text) = @_;
    ($good, $text) = (0, $reported) if $reported;
    $reported = '';
    Tap::ok($good, $name, $text);
}

# What the thread sanitizer finds fails a test (see run), but for what libraries do among themselves.
$ENV{TSAN_OPTIONS} = 'suppressions=' . File::Spec->rel2abs('tests/mpi_tsan.supp') . ':'
  . ($ENV{TSAN_OPTIONS} || '');
my $sanitizer = `ldd $build/bin/vocab 2>/dev/null` =~ /lib([at])san/ ? $1 : '';
# UCX, under MPICH, takes calls for memory over as a sanitizer does: not both.
$ENV{UCX_MEM_EVENTS} = 'n' if $sanitizer;

# Starts a command, of at most 60 s, and waits for it: exit status, what it printed, seconds.
sub start {
    my ($command) = @_;
    open my $output, '-|', "timeout -k 5 60 $command 2>&1" or die "$command: $!";
    return {output => $output, begin => time};
}

sub finish {
    my ($job) = @_;
    local $/;
    my $text = readline $job->{output};
    close $job->{output};
    my $status = $? >> 8 || $? & 127;
    my $seconds = time - $job->{begin};
    $text = '' unless defined $text;
    $reported .= $text if $text =~ /^(WARNING: ThreadSanitizer|==\d+==ERROR: )/m;
    return ($status, $text, $seconds);
}

sub run {
    return finish(start(@_));
}

my $small = '--impl ring-dtp --tokens 4 --hidden 16 --vocab 50 --iters 1';

# Without MPI, or under a launcher of another library, a process that was started as one of several
# does not go on as if it were alone.
sub refuses {
    my ($vocab, $variable, $what, $why) = @_;
    local $ENV{$variable} = 4;
    my ($status, $text) = run("$vocab $small --json $dir/refused");
    ok($status == 3 && $text =~ /started 4 processes \($variable\), but $why/ && !-e "$dir/refused",
        "$variable $what: refused", "exit $status\n$text");
    $ENV{$variable} = 1;
    ($status, $text) = run("$vocab $small --ranks 2");
    ok($status == 0, "$variable of a single process: thread ranks", "exit $status\n$text");
}

sub test_refusal {
    my @without = ('in a build without MPI', qr/this build has no MPI/);
    refuses("$build/sockets/vocab", $_, @without)
        for qw(OMPI_COMM_WORLD_SIZE PMI_SIZE MV2_COMM_WORLD_SIZE SLURM_STEP_NUM_TASKS);
    refuses("$build/bin/vocab", 'SLURM_STEP_NUM_TASKS', "without the launcher's MPI", qr/.*knows of 1/)
        if @libraries;
    my ($status, $text) = run("$build/bin/vocab $small --ranks-per-process 2");
    ok($status == 2 && $text =~ /--ranks-per-process: has no effect without a launcher/,
        'ranks per process without a launcher: refused', "exit $status\n$text");
}

# ---- one library

my ($name, $launcher, $programs, $tests);

sub select_library {
    ($name, $launcher) = @{$_[0]};
    my $first = $name eq $libraries[0][0];
    $programs = $first ? "$build/bin" : "$build/$name";
    $tests = $first ? "$build/tests" : "$build/$name";
}

sub job {
    my ($processes, $command) = @_;
    return run("$launcher -np $processes $command");
}

# The digests, verdicts, counts and peaks of a file of records, one line a case.
sub bits {
    my ($path) = @_;
    my @lines;
    for (split /\n/, slurp($path)) {
        my ($impl) = /"impl": ?"([^"]+)"/;
        my ($outputs) = /"outputs": ?(\{.*?\}\})/;
        my ($traffic) = /"traffic": ?(\{.*?\})/;
        push @lines, join ' ', $impl, $outputs || '', ($traffic || '') =~ s/,"network_bytes":\d+//r,
            /"peak_bytes": ?(\d+)/g;
    }
    return join "\n", @lines;
}

# The same bits as thread ranks.
sub test_bits {
    my ($processes, @programs) = @_;
    for my $program (@programs) {
        my ($threads, $ranks) = ("$dir/$program-$processes-threads", "$dir/$program-$processes-$name");
        run("$build/bin/$program $cases{$program} --ranks $processes --json $threads")
            unless -e $threads;
        unlink $ranks;
        my $alone = $processes == 1 ? '--ranks 1' : ''; # a single process has thread ranks
        my ($status, $text) =
            job($processes, "$programs/$program $cases{$program} $alone --json $ranks");
        my ($want, $got) = (bits($threads), bits($ranks));
        ok($status == 0 && $want ne '' && $want =~ /digest/ && $want eq $got,
            "$name: $program, $processes processes: bits, traffic and peaks of thread ranks",
            "exit $status\n$text\n$want\n$got");
    }
}

sub test_messages {
    for my $processes ($name eq $libraries[0][0] ? (2, 3) : 3) {
        my ($status, $text) = job($processes, "$tests/test_comm");
        ok($status == 0 && $text =~ /^1\.\.9$/m && $text !~ /^not ok/m
                && 9 == (() = $text =~ /^ok \d/mg),
            "$name: collectives over $processes processes; TAP from rank 0 alone", $text);
    }
    return if $name ne $libraries[0][0];
    my ($status, $text) = job(2, "$tests/test_comm 2");
    ok($status == 0 && $text =~ /, 4 ranks/ && $text !~ /^not ok/m,
        "$name: two processes of two ranks", $text);
}

sub test_launch {
    my $json = "$dir/launch-$name";
    my ($status, $text) = job(2, "$programs/vocab $small --ranks-per-process 2 --json $json");
    my $record = slurp($json);
    ok($status == 0 && $text =~ /^ +4 +16 +50 +4 .*bitwise/m
            && $text =~ /slowest: rank \d on \S+; fullest: rank \d on \S+/
            && $record =~ /"processes": ?2/ && $record =~ /"nodes": ?1/
            && $record =~ /"hosts": ?\["[^"]+"\]/ && $record =~ /"local_rank": ?3/
            && 4 == (() = $record =~ /"time_s": ?[\d.e-]+, ?"peak_bytes": ?\d+, ?"resident_bytes": ?\d+, ?"samples_s"/g)
            && 1 == (() = $record =~ /\n/g),
        "$name: ranks, hosts and samples are recorded, slowest and fullest named", "$text\n$record");
    ($status, $text) = job(2, "$programs/vocab $small --ranks 3");
    ok($status == 2 && $text =~ /--ranks: got 3, allowed 2 \(2 processes of 1\)/
            && 1 == (() = $text =~ /--ranks:/g),
        "$name: --ranks that the launcher did not start; said once", $text);
    my $other = $small =~ s/50/51/r;
    ($status, $text) = run("$launcher -np 1 $programs/vocab $small : -np 1 $programs/vocab $other");
    ok($status == 2 && $text =~ /rank 1 on \S+ was started with other options than rank 0/
            && $text =~ /--vocab 51/,
        "$name: other options on another rank", $text);
    # One process, of two ranks: threads as they always are, counted as the launcher's are.
    ($status, $text) = job(1, "$programs/vocab $small --ranks-per-process 2 --check reference");
    ok($status == 0 && $text =~ /^ +4 +16 +50 +2 .*bitwise/m, "$name: two ranks of one process",
        "exit $status\n$text");
    ($status, $text) = job(1, "$programs/vocab $small --ranks-per-process 2 --ranks 3");
    ok($status == 2 && $text =~ /--ranks: got 3, allowed 2 \(1 process of 2\)/,
        "$name: other ranks than those of one process", "exit $status\n$text");
    # A file that is there for one rank only.
    my $program = File::Spec->rel2abs("$programs/optimizer");
    mkdir "$dir/$_" for qw(with without);
    open my $model, '>', "$dir/with/list" or die "$dir/with/list: $!";
    print $model "w 10x10 decay\n";
    close $model;
    my $one = "$program --model list --iters 1";
    ($status, $text) = run("$launcher -np 1 -wdir $dir/with $one : -np 1 -wdir $dir/without $one");
    ok($status == 2 && $text =~ /rank 1 on \S+ cannot go on: optimizer: option --model: .*list/,
        "$name: a file that only one rank finds", "exit $status\n$text");
    ($status, $text) = job(2, "$programs/vocab $small --message-gbps 1");
    ok($status == 2 && $text =~ /message-gbps/, "$name: no pace between processes", $text);
    ($status, $text) = job(3, "$programs/dispatch --impl llep,pipelined-llep --tokens 64 --hidden 32 "
          . "--ffn 32 --experts 6 --topk 2 --routing 95/1 --device-memory 90K --oom record --iters 1");
    ok($status == 0 && $text =~ /OUT OF MEMORY/, "$name: out of memory is a row like any other", $text);
}

# ---- faults

# What a fault does, and what of it must be read: `fails` ends the job, `recovers` its group alone.
my $at = qr/mpi_faults: rank 2 on \S+/;
my %faults = (
    kill => [\&fails, qr/$at was killed by signal 9 .*phase: group 0/],
    'exit 0' => [\&fails, qr/$at ended on its own with status 0, phase: group 0/],
    loop => [\&fails, qr/$at: rank \d waited 2\S* s for it in '[^']+'; last: working, phase: group 0/],
    stop => [\&fails, qr/$at: was not heard of for 2/],
    memory => [\&recovers, qr/status 1: .*too much.* asked for 1099511627776/],
    leave => [\&recovers, qr/status 3: rank 2 left while rank \d waits for it/],
    size => [\&recovers, qr/status 3: exchange 'planned': rank \d sends rank \d (299999|300000) bytes/],
    label => [\&recovers, qr/status 3: exchange \d of a communicator is '[^']+' on rank/],
);

sub fails {
    my ($fault, $pattern, $status, $text, $seconds) = @_;
    my $found = left_behind("$tests/mpi_faults $fault");
    ok($status != 0 && $text =~ $pattern && $seconds < 30 && $found eq '',
        "$name: $fault: named, the job ended, nobody left",
        "exit $status after $seconds s\n$text$found");
}

sub recovers {
    my ($fault, $pattern, $status, $text) = @_;
    ok($status == 1 && $text =~ /group 0: rank \d, $pattern/ && $text =~ /group 2: rank \d, $pattern/
            && 2 == (() = $text =~ /group [13]: fine/g),
        "$name: $fault: fails its group on all ranks; the next one is fine", "exit $status\n$text");
}

# All of them, or those in which libraries and launchers have a part; three at a time, since what
# they do most is wait.
sub test_faults {
    my @waiting = $_[0] ? qw(kill loop stop memory leave size label) : qw(kill loop memory leave);
    push @waiting, 'exit 0';
    my @running;
    while (@waiting || @running) {
        while (@waiting && @running < 3) {
            my $fault = shift @waiting;
            push @running, [$fault, start("$launcher -np 4 $tests/mpi_faults '$fault'")];
        }
        my ($fault, $job) = @{shift @running};
        my ($check, $pattern) = @{$faults{$fault}};
        $check->($fault, $pattern, finish($job));
    }
}

# The processes of a program's ranks: children of one with the same command line.
sub ranks_of {
    my ($program, $mark) = @_;
    my %parent = map { /^\s*(\d+)\s+(\d+)/ ? ($1, $2) : () }
        grep { /\/$program .*\Q$mark\E/ && !/timeout/ && !/mpirun|mpiexec/ }
        split /\n/, `ps -eo pid,ppid,args`;
    return sort { $a <=> $b } grep { exists $parent{$parent{$_}} } keys %parent;
}

# A rank is killed while records are written: whole lines only.
sub test_killed_program {
    my $json = "$dir/killed-$name";
    my $mark = "--seed 77$$";
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        exec "timeout -k 5 60 $launcher -np 3 $programs/vocab --impl vocab-parallel,ring-dtp "
          . "--tokens 16 --hidden 16 --vocab " . join(',', 50 .. 250)
          . " --iters 3 $mark --json $json >$dir/killed.text 2>&1";
    }
    for (1 .. 100) {
        last if -s $json;
        sleep 0.1;
    }
    my @ranks = ranks_of('vocab', $mark);
    kill 'KILL', $ranks[1] if @ranks == 3;
    waitpid $pid, 0;
    my $status = $? >> 8 || $? & 127;
    my ($text, $lines) = (slurp("$dir/killed.text"), slurp($json));
    my $partial = grep { !/^\{.*\}$/ } split /\n/, $lines;
    my $found = left_behind($mark);
    ok(@ranks == 3 && $status != 0 && $lines =~ /\n\z/ && !$partial && $found eq ''
            && $text =~ /vocab: rank \d on \S+ was killed by signal 9 .*phase: (\S+, case \d+|between two cases)/,
        "$name: a killed rank is named with its phase, records are whole lines",
        "exit $status, ranks @ranks\n$text$found");
}

# One process is told to end: all leave after the same step, with what was reached.
sub test_interrupted {
    my ($json, $said) = ("$dir/interrupted-$name", "$dir/interrupted-$name.text");
    my $mark = "--seed 78$$";
    my $pid = fork // die "fork: $!";
    if (!$pid) {
        my $case = $cases{train} =~ s/--composition \S+ --steps 3/--composition composed --steps 10000000/r;
        exec "timeout -k 5 60 $launcher -np 3 $programs/train $case $mark --json $json >$said 2>&1";
    }
    for (1 .. 300) {
        last if slurp($said) =~ /^  step +1 /m;
        sleep 0.1;
    }
    my @ranks = ranks_of('train', $mark);
    kill 'TERM', $ranks[1] if @ranks == 3;
    waitpid $pid, 0;
    my $status = $? >> 8 || $? & 127;
    my ($text, $record, $found) = (slurp($said), slurp($json), left_behind($mark));
    my ($reached) = $text =~ /interrupted after step (\d+) of 10000000/;
    ok(@ranks == 3 && $status != 0 && $reached && $record =~ /^\{.*"stopped_by":"interrupt".*\}\n\z/
            && $found eq '' && $text =~ /train: interrupted/,
        "$name: a process that is told to end ends all of them after a step, with a whole record",
        "exit $status, ranks @ranks\n$text$record$found");
}

# ---- two hosts

# Namespaces and their interfaces; the process's number keeps two runs apart.
my ($here, $there) = map { "f$$" . $_ } qw(a b);

# Two network namespaces, joined by a pair of interfaces with 5 ms of delay, each with a host name of
# its own. '', 'slow' where there can be no delay, or why not.
$SIG{INT} = $SIG{TERM} = sub { exit 1 };

sub make_hosts {
    return 'not root' if $> != 0;
    return 'no ip, tc or unshare' if grep { system("command -v $_ >/dev/null 2>&1") } qw(ip tc unshare);
    my @steps = ("ip netns add $here", "ip netns add $there",
        "ip link add $here netns $here type veth peer name $there netns $there",
        "ip -n $here addr add 10.77.0.1/24 dev $here",
        "ip -n $there addr add 10.77.0.2/24 dev $there",
        (map { ("ip -n $_ link set $_ up", "ip -n $_ link set lo up") } $here, $there));
    for (@steps) {
        my $text = `$_ 2>&1`;
        return "$_: $text" if $?;
    }
    my $slow = grep {
        system("ip netns exec $_ tc qdisc add dev $_ root netem delay 5ms 2>/dev/null")
    } $here, $there;
    open my $agent, '>', "$dir/agent" or return "$dir/agent: $!";
    # What launchers call in place of ssh: HOST COMMAND...
    print $agent "#!/bin/sh\nwhile [ \"\${1#-}\" != \"\$1\" ]; do shift; done\n"
      . "case \$1 in 10.77.0.1) n=$here ;; *) n=$there ;; esac\nshift\n"
      . "exec ip netns exec \$n unshare --uts sh -c \"hostname \$n; \$*\"\n";
    close $agent;
    chmod 0755, "$dir/agent";
    return $slow ? 'slow' : '';
}

END {
    my $status = $?;
    system("ip netns del $_ 2>/dev/null") for grep { defined && -e "/run/netns/$_" } $here, $there;
    $? = $status;
}

sub test_hosts {
    my ($delay) = @_;
    my $command = $name eq 'openmpi'
      ? "ip netns exec $here unshare --uts sh -c 'hostname $here; exec $launcher "
      . "--mca plm_rsh_agent $dir/agent --mca oob_tcp_if_include $here,$there --mca btl self,vader,tcp "
      . '--mca btl_tcp_if_include 10.77.0.0/24 --host 10.77.0.1:2,10.77.0.2:2 -np 4 '
      : "ip netns exec $here unshare --uts sh -c 'hostname $here; exec $launcher -launcher ssh "
      . "-launcher-exec $dir/agent -hosts 10.77.0.1:2,10.77.0.2:2 -np 4 ";
    local $ENV{UCX_TLS} = 'self,sm,tcp';
    my @programs = $name eq $libraries[0][0] && $sanitizer ne 't' ? sort keys %cases : 'vocab';
    for my $program (@programs) {
        my ($threads, $ranks) = ("$dir/$program-4-threads", "$dir/$program-hosts-$name");
        run("$build/bin/$program $cases{$program} --ranks 4 --json $threads") unless -e $threads;
        unlink $ranks;
        my ($status, $text) = run("$command $programs/$program $cases{$program} --json $ranks'");
        my ($want, $got, $record) = (bits($threads), bits($ranks), slurp($ranks));
        ok($status == 0 && $want ne '' && $want eq $got && $record =~ /"hosts": ?\["$here", ?"$there"\]/
                && $record =~ /"nodes": ?2/
                && ($program !~ /vocab|dispatch/ || $record =~ /"network_bytes": ?[1-9]/),
            "$name: $program on two hosts$delay: the bits of thread ranks, bytes between nodes",
            "exit $status\n$text\n$want\n$got");
    }
}

# ---- all

test_refusal();
for my $library (@libraries) {
    select_library($library);
    if (!$launcher) {
        skip("$name", 'no launcher beside its compiler');
        next;
    }
    my $all = $name eq $libraries[0][0];
    test_messages();
    # The thread sanitizer has seen all there is with two processes, and takes its time.
    test_bits($_, sort keys %cases) for $sanitizer eq 't' ? 2 : $all ? (1, 2, 3, 4, 8) : 4;
    test_launch();
    test_faults($all);
    test_killed_program();
    test_interrupted();
}
my $why = @libraries ? make_hosts() : 'no MPI in this build';
if ($why && $why ne 'slow') {
    skip('two hosts', $why =~ s/\n.*//sr);
} else {
    for my $library (@libraries) {
        select_library($library);
        test_hosts($why ? '' : ' with 5 ms between them') if $launcher;
    }
}
done();
