#!/usr/bin/env perl
# bin/dispatch from outside: what it prints, records, reads, dumps and refuses.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $bin = ($ENV{BUILDDIR} || 'build') . '/bin/dispatch';
my $dir = tempdir(CLEANUP => 1);

# Runs dispatch; returns exit status and both outputs together.
sub dispatch {
    my ($arguments) = @_;
    my $text = `$bin $arguments 2>&1`;
    return ($? >> 8, $text);
}

sub refuses {
    my ($arguments, $status, $pattern) = @_;
    my ($got, $text) = dispatch($arguments);
    ok($got == $status && $text =~ $pattern, "$arguments: exit $status, says $pattern",
        "exit $got: $text");
}

# A version 1.0 .npy file.
sub npy {
    my ($path, $type, $shape, $data) = @_;
    my $header = "{'descr': '$type', 'fortran_order': False, 'shape': ($shape), }";
    $header .= ' ' x (64 - (10 + length($header) + 1) % 64) . "\n";
    open my $file, '>:raw', $path or die "$path: $!";
    print $file "\x93NUMPY\x01\x00" . pack('v', length $header) . $header . $data;
    close $file or die "$path: $!";
}

my @impls = qw(llep alltoall alltoall-ckpt alltoall-dedup chunked fastermoe tutel janus pipelined-llep
  relay-expert relay-token relay);

# ---- the command that the suite was built for

my ($status, $text) = dispatch('--impl alltoall,llep,pipelined-llep --ranks 8 --tokens 512 '
      . '--hidden 256 --ffn 256 --experts 32 --topk 4 --routing balanced,95/16,30/4 '
      . "--chunk-budget 128 --pass both --check reference --iters 1 --json $dir/nine.jsonl");
my @lines = grep { / (alltoall|llep|pipelined-llep) .*\bbitwise\b/ } split /\n/, $text;
ok($status == 0 && @lines == 9, 'three dispatchers on three routings: nine lines, bitwise', $text);
ok((grep { /MiB/ } @lines) == 9, 'each with its peak');
my @bounded = grep { / pipelined-llep .* \d+\.\d% +\d+\.\d% +4 / } @lines;
ok(@bounded == 3, 'pipelined-llep in four chunks, with its saving against llep and its bound share',
    join("\n", @lines));
ok((grep { /load: routes to a rank min \d+, median \d+, p95 \d+, max \d+; to an expert/ }
          split /\n/, $text) == 3, 'the realised load of each routing', $text);
my $records = () = slurp("$dir/nine.jsonl") =~ /"verdict": ?"bitwise", ?"against": ?"reference"/g;
ok($records == 9, 'nine records, bitwise');
ok(slurp("$dir/nine.jsonl") =~ /"routes_to_expert"/, 'the record has the load histogram');

# ---- every implementation

my $small = '--hidden 32 --ffn 16 --experts 12 --topk 3 --iters 1';
for my $shape ('--ranks 3 --tokens-per-rank 5,0,17 --routing uniform', '--ranks 4 --tokens 9 --routing 95/4',
    '--ranks 2 --tokens 16 --routing burst --dtype bf16 --chunk-count 5') {
    my $which = $shape =~ /chunk/ ? 'chunked,pipelined-llep' : 'all';
    ($status, $text) = dispatch("--impl $which $shape $small --check reference");
    my $bitwise = () = $text =~ /\bbitwise\b/g;
    ok($status == 0 && $bitwise == ($which eq 'all' ? @impls : 2), "$shape: bitwise", $text);
}
($status, $text) = dispatch("--impl all --ranks 2 --tokens 8 $small --check sample:3");
my @named = $text =~ /  (\S+) +\S+ .?s .*bitwise \(sample:3\)/g;
ok("@named" eq "@impls", 'a sample is checked and named; every dispatcher by its name', $text);
for my $pass (qw(forward backward)) {
    ($status, $text) = dispatch("--impl all --ranks 2 --tokens 16 $small --pass $pass");
    ok($status == 0, "--pass $pass", $text);
}
($status, $text) = dispatch("--impl alltoall --keep eager,megatron --ranks 2 --tokens 64 $small");
my @kept = $text =~ /alltoall .*?([\d.]+ .iB) +[\d.]+ .iB/g;
ok($status == 0 && @kept == 2 && $kept[0] ne $kept[1], '--keep changes the peak', $text);
($status, $text) = dispatch("--impl all --ranks 2 --tokens 16 $small --check baseline");
my $named = () = $text =~ /\(baseline\)/g;
ok($status == 0 && $named == @impls, 'the baseline check is named', $text);
($status, $text) =
  dispatch("--impl all --ranks 4 --tokens 8 $small --data integers --activation relu --routing duplicates");
my $exact = () = $text =~ /\bexact-input\b/g;
ok($status == 0 && $exact == @impls, 'whole numbers: a line each, exact-input', $text);

dispatch("--impl $_ --ranks 2 --tokens 16 $small --dump $dir/$_") for 'llep', 'alltoall';
for my $name (qw(Y dX dw)) {
    my $one = slurp("$dir/llep/$name.npy");
    ok(length $one > 64 && $one eq slurp("$dir/alltoall/$name.npy"), "two dispatchers dump the same $name");
}
($status, $text) = dispatch(
    "--impl pipelined-llep --ranks 2 --tokens 64 $small --chunk-count 4 --trace $dir/trace.json");
ok($status == 0 && slurp("$dir/trace.json") =~ /X to experts/, '--trace names the exchanges', $text);

($status, $text) = dispatch("--impl fastermoe --ranks 4 --tokens 40 $small --routing hot-expert,balanced");
ok($status == 0 && $text =~ / hot-expert .* 3 +- +bitwise.* balanced .* 0 +- +bitwise/s,
    'fastermoe shadows the hot expert on three ranks, and none where routing is balanced', $text);
($status, $text) = dispatch("--impl tutel,janus --parts 1,3 --credits 1,4 --ranks 4 --tokens 20 $small --check reference");
my $four = () = $text =~ /\bbitwise\b/g;
ok($status == 0 && $four == 4, '--parts and --credits: bitwise', $text);

# ---- the ring

($status, $text) = dispatch('--impl alltoall,pipelined-llep,relay-expert,relay-token,relay --ranks 8 '
      . '--tokens 32 --hidden 32 --ffn 16 --experts 32 --topk 4 --routing balanced,80/16 --iters 1 '
      . '--check reference');
@lines = grep { /\bbitwise\b/ } split /\n/, $text;
ok($status == 0 && @lines == 10, 'the ring beside the exchange: ten lines, bitwise', $text);
for my $off ('--overlap on,off', '--grouped on,off', '--hop-rows 0,7') {
    ($status, $text) = dispatch("--impl relay-expert,relay-token --ranks 3 --tokens 9 $small $off --check reference");
    my $bitwise = () = $text =~ /\bbitwise\b/g;
    ok($status == 0 && $bitwise == 4, "$off: bitwise", $text);
}
($status, $text) = dispatch('--impl relay --volume printed,true --ranks 2 --tokens 60 --hidden 32 '
      . "--ffn 16 --experts 4 --topk 3 --iters 1 --json $dir/relay.jsonl");
ok($status == 0 && $text =~ /printed .* yes +bitwise.*true .* no +bitwise/s,
    'the two rules disagree here, and a line says what each chose', $text);
my $totals = () = slurp("$dir/relay.jsonl") =~
  /"hop_bytes": ?\{"printed": ?\{"moves": ?"tokens", ?"experts": ?\{"forward": ?12288/g;
ok($totals == 2, 'both records hold both totals', slurp("$dir/relay.jsonl"));

# ---- traces

sub indices { map { ($_ * 7 + int($_ / 5)) % 12 } 0 .. $_[0] - 1 }
npy("$dir/same.npy", '<i4', '9, 3', pack('l<*', indices(27)));
npy("$dir/ranks.npy", '<i8', '2, 9, 3', pack('q<*', indices(54)));
npy("$dir/steps.npy", '<i4', '4, 2, 9, 3', pack('l<*', (3) x 54, indices(162)));
npy("$dir/layers.npy", '<i4', '2, 2, 2, 9, 3', pack('l<*', indices(216)));
npy("$dir/counts.npy", '<i4', '2, 12', pack('l<*', map { $_ % 5 } 1 .. 24));
mkdir "$dir/folder";
npy("$dir/folder/rank_0.npy", '<i4', '5, 3', pack('l<*', indices(14), -1));
npy("$dir/folder/rank_1.npy", '<i4', '11, 3', pack('l<*', indices(33)));
$small = '--hidden 32 --ffn 16 --experts 12 --iters 1';
for my $trace ("$dir/same.npy", "$dir/ranks.npy", "$dir/folder", "counts:$dir/counts.npy") {
    my $topk = $trace =~ /counts/ ? '--topk 3' : '';
    ($status, $text) = dispatch("--routing $trace --ranks 2 --impl all $topk $small --check reference");
    my $bitwise = () = $text =~ /\bbitwise\b/g;
    ok($status == 0 && $bitwise == @impls, (split m{/}, $trace)[-1] . ': a line each, bitwise', $text);
}
for my $trace ('steps', 'layers') {
    ($status, $text) = dispatch("--routing $dir/$trace.npy --ranks 2 --impl alltoall,pipelined-llep $small");
    ok($status == 0 && $text =~ /4 steps(?: and layers)?: peak median .*, p95 .*, max .* \(step \d/,
        "$trace.npy: the worst of four steps, and percentiles", $text);
}
($status, $text) = dispatch("--routing $dir/steps.npy --ranks 2 --impl alltoall $small");
ok($text =~ /\(step 0, shown\)/, 'the step in which all tokens name one expert is the worst', $text);

# ---- bad traces: exit 2, naming the first bad entry

my @bad = indices(54);
@bad[31, 40] = (12, -5);
npy("$dir/high.npy", '<i4', '2, 9, 3', pack('l<*', @bad));
refuses("--routing $dir/high.npy --ranks 2 $small", 2,
    qr/high\.npy: \[rank 1, token 1, slot 1\] is 12, allowed 0\.\.11 or -1/);
@bad = indices(54);
@bad[3, 31] = (-2, 12);
npy("$dir/low.npy", '<i8', '2, 9, 3', pack('q<*', @bad));
refuses("--routing $dir/low.npy --ranks 2 $small", 2, qr/low\.npy: \[rank 0, token 1, slot 0\] is -2/);
@bad = indices(216);
$bad[215] = 1 << 20;
npy("$dir/deep.npy", '<i4', '2, 2, 2, 9, 3', pack('l<*', @bad));
refuses("--routing $dir/deep.npy --ranks 2 $small", 2,
    qr/deep\.npy: \[step 1, layer 1, rank 1, token 8, slot 2\] is 1048576/);
npy("$dir/negative.npy", '<i4', '2, 12', pack('l<*', 1, 2, -1, (0) x 21));
refuses("--routing counts:$dir/negative.npy --ranks 2 --topk 3 $small", 2, qr/negative\.npy: .* is -1/);
npy("$dir/real.npy", '<f4', '9, 3', pack('f<*', (0) x 27));
refuses("--routing $dir/real.npy --ranks 2 $small", 2, qr/real\.npy: got .*, allowed int32 or int64/);
npy("$dir/flat.npy", '<i4', '9,', pack('l<*', (0) x 9));
refuses("--routing $dir/flat.npy --ranks 2 $small", 2, qr/flat\.npy: got shape/);
npy("$dir/short.npy", '<i4', '9, 3', pack('l<*', (0) x 20));
refuses("--routing $dir/short.npy --ranks 2 $small", 2, qr/short\.npy/);
refuses("--routing $dir/ranks.npy --ranks 4 $small", 2, qr/ranks\.npy: holds 2 ranks, and --ranks is 4/);
refuses("--routing $dir/nowhere.npy $small", 2, qr/nowhere\.npy/);
refuses("--routing counts:$dir/counts.npy --ranks 2 --topk 3 --experts 16", 2, qr/counts of 12 experts/);
unlink "$dir/folder/rank_0.npy";
refuses("--routing $dir/folder --ranks 2 $small", 2, qr/folder/);
refuses("--routing $dir/same.npy --ranks 2 --topk 4 $small", 2, qr/--topk: got 4, allowed 3/);
refuses("--routing $dir/same.npy --ranks 2 --tokens 9 $small", 2, qr/--tokens/);
refuses("--routing $dir/steps.npy --steps 5 --ranks 2 $small", 2, qr/--steps: got 5, allowed 1\.\.4/);

# ---- bad options

refuses('--experts 10 --ranks 4', 2, qr/--experts: got 10, allowed a multiple of 4/);
refuses('--routing sometimes', 2, qr/--routing.*sometimes/);
refuses('--routing 30/40 --experts 32 --ranks 2', 2, qr/--routing/);
refuses('--ranks 3 --experts 6 --tokens-per-rank 5,0', 2, qr/tokens-per-rank: got 2 counts, allowed 3/);
refuses('--data integers', 2, qr/--data: .*relu/);
refuses('--impl nothing', 2, qr/nothing.*llep/);
refuses('--no-such-option', 2, qr/no-such-option/);
refuses('--topk 0', 2, qr/--topk/);
refuses('--impl llep --chunk-budget 8', 2, qr/--chunk-budget/);
refuses('--impl llep --keep megatron', 2, qr/--keep/);
refuses('--impl alltoall,chunked --lambda 2', 2, qr/--lambda/);
refuses('--impl chunked --chunks strided', 2, qr/--chunks/);
refuses('--impl chunked --streams serial', 2, qr/--streams/);
refuses('--impl llep,relay --volume sometimes', 2, qr/--volume.*printed/);
refuses('--impl relay-token --volume true', 2, qr/--volume/);
refuses('--impl alltoall --overlap off', 2, qr/--overlap/);
refuses('--keep nothing', 2, qr/--keep.*eager/);
refuses('--tokens 32M --hidden 1M --ffn 1M --topk 63 --experts 64K --ranks 8', 2, qr/--tokens.*64-bit/);
refuses('--device-memory 1M --impl alltoall --ranks 2', 3, qr/live set \w+ .*asked for/);
refuses('--device-memory 1M --impl alltoall --ranks 2 --oom record', 0, qr/OUT OF MEMORY/);

refuses('--device sim --impl llep,relay-token --tokens 0', 0, qr/\A(?!.* -0\.0%).* 0\.0%/s);

# Memory that ends in the middle of a pass: under AddressSanitizer, what the host held of it is not lost.
for my $memory ('1M', '1100K', '1300K', '1500K') {
    refuses("--device-memory $memory --impl all --ranks 4 --tokens 64 --hidden 64 --ffn 64 --iters 2 "
            . '--oom record', 0, qr/OUT OF MEMORY/);
}

done();
