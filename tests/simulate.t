#!/usr/bin/env perl
# --device sim[:PROFILE] in all programs: full shapes in seconds, what a record says of a simulated
# case, and what is refused.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $bin = ($ENV{BUILDDIR} || 'build') . '/bin';
my $dir = tempdir(CLEANUP => 1);

# Exit status and both outputs together.
sub run {
    my ($arguments) = @_;
    my $text = `$bin/$arguments 2>&1`;
    return ($? >> 8, $text);
}

# What the programs that have ended took of all cores.
sub child_cpu_s {
    my (undef, undef, $user, $system) = times;
    return $user + $system;
}

sub refuses {
    my ($arguments, $pattern) = @_;
    my ($got, $text) = run($arguments);
    ok($got == 2 && $text =~ $pattern && $text =~ /^[^\n]*\n$/,
        "$arguments: exit 2, says $pattern", "exit $got: $text");
}

# ---- the papers' shapes

my $full = 'dispatch --device sim:h200-8 --impl alltoall,llep,pipelined-llep --tokens 64K '
  . '--hidden 7168 --ffn 2048 --experts 128 --topk 8 --routing balanced,95/16 '
  . '--chunk-budget 6554 --max-chunks 10 --oom record';
my $begin = child_cpu_s();
my ($status, $text) = run("$full --json $dir/full.jsonl");
my $seconds = child_cpu_s() - $begin;
my @lines = grep { / (alltoall|llep|pipelined-llep) .*\bsimulated$/ } split /\n/, $text;
ok($status == 0 && @lines == 5 && $seconds < 20,
    sprintf('64K tokens a rank on eight ranks, three dispatchers: %.1f s of CPU', $seconds), $text);
ok($text =~ /alltoall .*OUT OF MEMORY\n.*live set \w+ \([\w ]+\) asked for \d+ bytes .*limit is \d+/,
    'what does not fit names its live set and the machine\'s limit', $text);
my (undef, $again) = run("$full --json $dir/again.jsonl");
ok($text eq $again, 'a second run prints the same to the letter', "$text\n$again");
my @runs = map { [slurp("$dir/$_.jsonl") =~ /"time":(\{"kind".*?\}\})/g] } qw(full again);
ok(@{$runs[0]} == 5 && "@{$runs[0]}" eq "@{$runs[1]}", 'and records the same times to the last digit');

my %lines = (
    vocab      => '--tokens 16K --hidden 7168 --vocab 200000 --dtype bf16',
    checkpoint => '--layers 47 --tokens 69632 --hidden 2880 --ffn 2880 --dtype bf16 '
      . '--host-budget 8G --pinned-rounding pow2',
    optimizer => '--model gpt-oss-20b --world 8 --bucket 100e6 --slots 1,2',
);
for my $program (sort keys %lines) {
    ($status, $text) = run("$program --device sim $lines{$program}");
    my $rows = () = $text =~ /\bsimulated$/mg;
    ok($status == 0 && $rows >= 4 && $text =~ /on sim:h200-8, simulated, \d+ cases/,
        "$program at full shape", $text);
}

# ---- what a record says

($status, $text) = run("vocab --device sim:h200-8 --impl ring-dtp --json $dir/record.jsonl");
my $record = slurp("$dir/record.jsonl");
ok($record =~ /"device":"sim:h200-8"/ && $record =~ /"check":\{"verdict":"simulated"\}/
      && $record =~ /"kind":"simulated"/ && $record !~ /ci95_s|protocol|"threads"/,
    'a record says that nothing was measured or compared', $record);
ok($record =~ /"ranks":8,/, 'the profile says how many ranks there are', $record);
my ($median) = $record =~ /"median_s":([\d.e-]+)/;
my ($low, $high) = $record =~ /"range_s":\[([\d.e-]+),([\d.e-]+)\]/;
ok($low < $median && $median < $high, 'the range of rates 20 % up and down holds the time', $record);
my ($slower) = $record =~ /"links slower":([\d.e-]+)/;
my ($faster) = $record =~ /"links faster":([\d.e-]+)/;
ok($record =~ /"machines_s":\{"profile":\Q$median\E/ && $slower >= $median && $faster <= $median,
    'and the times on machines of which a part is slower or faster', $record);

($status, $text) = run('dispatch --device sim --impl llep --csv --ranks 4');
my ($head, $row) = map { [split /,/] } split /\n/, $text;
my %field;
@field{@$head} = @$row if $row;
ok($status == 0 && $field{device} eq 'sim:h200-8' && $field{verdict} eq 'simulated'
      && $field{range_low_s} < $field{median_s} && $field{median_s} < $field{range_high_s}
      && $field{ci95_low_s} eq '',
    'CSV has the range and no interval', $text);

($status, $text) = run("dispatch --device sim --impl pipelined-llep --trace $dir/trace.json");
ok($status == 0 && slurp("$dir/trace.json") =~ /"expert_matmul"/, 'a trace has simulated kernels', $text);

($status, $text) = run('dispatch --device sim --impl all --check-order --routing 95/16 --topk 2 '
      . '--tokens 64 --hidden 16 --ffn 16 --chunk-count 3');
ok($status == 0, 'the order of all dispatchers is proved on the simulated device too', $text);

# ---- what kernels declare: on a machine of nothing but one rate, a program's throughput is that rate
# times the share that the definition has in what the implementation computes

my $pure = join '', map { "$_\n" } 'description = one rate', 'memory_bytes = 1e15',
  'reserved_memory_bytes = 0', 'ranks = 1', 'ranks_per_node = 1', 'host_memory_bytes = 1e15',
  (map { ("${_}_flops_per_s = 1e12", "${_}_efficiency = 1", map { "$_ = 0" } "${_}_half_m", "${_}_half_n",
      "${_}_half_k") } qw(f32 bf16)),
  (map { "${_}_per_s = 1e20" } qw(memory_bytes link_bytes network_bytes h2d_bytes d2h_bytes
      host_memory_bytes host_flops host_adamw_params)),
  (map { "$_ = 0" } qw(launch_s link_latency_s network_latency_s host_link_latency_s)),
  'link_duplex = yes', 'host_link_duplex = yes';
spew("$dir/flops.conf", $pure);
$pure =~ s/^memory_bytes_per_s.*/memory_bytes_per_s = 1e12/m;
spew("$dir/bytes.conf", $pure);

sub declares {
    my ($arguments, %share) = @_;
    my ($got, $csv) = run("$arguments --csv");
    my ($names, @rows) = map { [split /,/] } split /\n/, $csv;
    my @wrong;
    for my $row (@rows) {
        my %at;
        @at{@$names} = @$row;
        my $want = 1e12 * ($share{$at{impl}} || $share{others});
        push @wrong, "$at{impl}: $at{throughput}, expected $want"
          if abs($at{throughput} / $want - 1) > 0.01;
    }
    ok($got == 0 && @rows > 1 && !@wrong, (split / /, $arguments)[0] . ": kernels declare the definition's work",
        join("\n", @wrong));
}

# Logits formed twice; experts recomputed whole, layers all but their last product.
declares("vocab --device sim:$dir/flops.conf --tokens 4K --hidden 2K --vocab 32K --dtype bf16",
    others => 1, 'ring-dtp' => 6 / 8);
declares("dispatch --device sim:$dir/flops.conf --tokens 4K --hidden 2K --ffn 2K --chunk-count 4 "
      . '--dtype bf16 --impl llep,alltoall,alltoall-ckpt,alltoall-dedup,chunked,pipelined-llep',
    others => 18 / 24, alltoall => 1);
declares("checkpoint --device sim:$dir/flops.conf --tokens 4K --hidden 2K --ffn 2K --dtype bf16",
    others => 18 / 22, 'full-activations' => 1);
declares("optimizer --device sim:$dir/bytes.conf --propagate --weight-decay 0 "
      . "--impl device,staged,offload-stream",
    others => 1);

# Nobody reads targets or router weights here: terabytes of them are not asked for.
for my $impl (qw(ring-dtp materialized)) {
    my ($got, $text) = run("vocab --device sim --impl $impl --ranks 128 --hidden 1 --vocab 2K --tokens 2147483647 --oom record");
    ok($got == 0 && $text =~ /device memory of rank \d+: live set/,
        "$impl: targets of 2 TiB are counted against the device and not made", "exit $got: $text");
}

# ---- what is refused

my $profile = slurp('profiles/h200-8.conf');
my @profile = split /\n/, $profile;
my ($at) = grep { $profile[$_ - 1] =~ /^link_bytes_per_s/ } 1 .. @profile;
(my $negative = $profile) =~ s/^(link_bytes_per_s\s*=\s*)\S+/$1-5e9/m;
(my $missing = $profile) =~ s/^launch_s.*\n//m;
spew("$dir/negative.conf", $negative);
spew("$dir/missing.conf", $missing);
for my $program (qw(dispatch vocab checkpoint optimizer)) {
    refuses("$program --device sim:h900", qr{profiles/h900\.conf.*allowed.*h200-8});
    refuses("$program --device sim:$dir/negative.conf",
        qr{negative\.conf:$at: link_bytes_per_s: got '-5e9', allowed a number above 0});
    refuses("$program --device sim:$dir/missing.conf", qr{missing\.conf:\d+: launch_s: });
    refuses("$program --device sim --check reference", qr/--check: got 'reference', allowed off/);
    refuses("$program --device sim --iters 3", qr/--iters: has no effect on sim/);
    refuses("$program --device sim --threads 2", qr/--threads: has no effect on sim/);
}
refuses('dispatch --device sim --message-gbps 2', qr/--message-gbps: has no effect on sim/);
refuses('checkpoint --device sim --link-gbps 2', qr/--link-gbps: has no effect on sim/);
refuses("vocab --device sim --load $dir", qr/--load: has no effect on sim/);
refuses("vocab --device sim --dump $dir", qr/--dump: has no effect on sim/);
refuses('optimizer --device sim --nonfinite 2', qr/--nonfinite: has no effect on sim/);
refuses('vocab --device simulated', qr/got 'simulated', allowed cpu, sim\[:PROFILE\], cuda/);

done();
