#!/usr/bin/env perl
# bin/vocab from outside: what it prints, records, loads, dumps and refuses.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $bin = ($ENV{BUILDDIR} || 'build') . '/bin/vocab';
my $dir = tempdir(CLEANUP => 1);

# Runs vocab; returns exit status and both outputs together.
sub vocab {
    my ($arguments) = @_;
    my $text = `$bin $arguments 2>&1`;
    return ($? >> 8, $text);
}

sub refuses {
    my ($arguments, $status, $pattern) = @_;
    my ($got, $text) = vocab($arguments);
    ok($got == $status && $text =~ $pattern, "$arguments: exit $status, says $pattern");
    print "# exit $got: $text" unless $got == $status && $text =~ $pattern;
}

# A version 1.0 .npy file.
sub npy {
    my ($path, $type, $shape, $data, %how) = @_;
    my $order = $how{fortran} ? 'True' : 'False';
    my $header = "{'descr': '$type', 'fortran_order': $order, 'shape': ($shape), }";
    $header .= ' ' x (64 - (10 + length($header) + 1) % 64) . "\n";
    spew($path, "\x93NUMPY\x01\x00" . pack('v', length $header) . $header . $data);
}

# Five tokens of width 3 against seven vocabulary rows.
sub tensors {
    my ($to) = @_;
    mkdir $to;
    npy("$to/x.npy", '<f4', '5, 3', pack('f<*', map { ($_ % 7 - 3) / 4 } 1 .. 15));
    npy("$to/w.npy", '<f4', '7, 3', pack('f<*', map { ($_ % 5 - 2) / 2 } 1 .. 21));
    npy("$to/targets.npy", '<i8', '5,', pack('q<*', 0, 6, -100, 3, 1));
}

# ---- every implementation, even and uneven ranks

for my $shape ('--ranks 4 --tokens 64 --hidden 32 --vocab 3000',
    '--ranks 3 --tokens-per-rank 5,0,7 --vocab 1003 --hidden 32',
    '--ranks 2 --tokens 16 --hidden 32 --vocab 3000 --dtype bf16') {
    my $json = "$dir/all.jsonl";
    unlink $json;
    my ($status, $text) =
        vocab("--impl all $shape --pass both --check reference --iters 1 --json $json");
    my $bitwise = () = $text =~ /\bbitwise\b/g;
    my $lines = () = slurp($json) =~ /"verdict": ?"bitwise", ?"against": ?"reference"/g;
    ok($status == 0 && $bitwise == 4, "$shape: four lines, bitwise");
    ok($lines == 4, "$shape: four records, bitwise");
    print "# exit $status, $lines records\n$text" unless $status == 0 && $bitwise == 4;
}

my ($status, $text) = vocab('--impl ring-dtp --ranks 2 --tokens 16 --check sample:3 --iters 1');
ok($status == 0 && $text =~ /bitwise \(sample:3\)/, 'a sample is checked and named');
($status, $text) = vocab('--impl ring-dtp --ranks 2 --tokens 16 --check baseline --iters 1');
ok($status == 0 && $text =~ /\(baseline\)/, 'the baseline check is named');
for my $pass (qw(forward backward)) {
    ($status, $text) = vocab("--impl all --ranks 2 --tokens 16 --pass $pass --iters 1");
    ok($status == 0, "--pass $pass");
}
($status, $text) = vocab('--plan --ranks 8 --tokens 16K --hidden 7168 --vocab 200000 --impl ring-dtp');
ok($status == 0 && $text =~ /increment 2\.918 GiB/, '--plan prints the closed form of a full shape');
($status, $text) = vocab('--ranks 2 --tokens 4 --ignored 1 --iters 1 --impl all');
ok($status == 0 && $text =~ /no token has a target/, 'no valid token: said');

# ---- the user's own tensors

my $in = "$dir/in";
tensors($in);
my ($one, $two) = ("$dir/one", "$dir/two");
($status, $text) = vocab("--load $in --impl ring-dtp --ranks 2 --dump $one --iters 1");
ok($status == 0 && $text =~ /bitwise/, '--load and --dump');
print "# $text" if $status;
for my $name (qw(loss dX dW)) {
    ok(length slurp("$one/$name.npy") > 64, "--dump writes $name.npy");
}
vocab("--load $in --impl materialized --ranks 2 --dump $two --iters 1");
ok(slurp("$one/loss.npy") eq slurp("$two/loss.npy"), 'two implementations dump the same loss');
ok(length slurp("$one/dW.npy") == length slurp("$two/dW.npy"), 'dW has its shape on any rank count');

# ---- refused, each by name

refuses("--load $dir/nowhere", 2, qr/nowhere/);
my @broken = (
    ['truncated', 'w.npy', sub { my $b = slurp("$_[0]/w.npy"); spew("$_[0]/w.npy", substr($b, 0, -5)) }],
    ['of another type', 'x.npy', sub { npy("$_[0]/x.npy", '<f8', '5, 3', pack('d<*', (0) x 15)) }],
    ['in Fortran order', 'x.npy',
        sub { npy("$_[0]/x.npy", '<f4', '5, 3', pack('f<*', (0) x 15), fortran => 1) }],
    ['of another width', 'x.npy', sub { npy("$_[0]/x.npy", '<f4', '5, 4', pack('f<*', (0) x 20)) }],
    ['with one dimension', 'w.npy', sub { npy("$_[0]/w.npy", '<f4', '21,', pack('f<*', (0) x 21)) }],
    ['too short', 'targets.npy', sub { npy("$_[0]/targets.npy", '<i8', '4,', pack('q<*', (0) x 4)) }],
    ['outside the vocabulary', 'targets.npy',
        sub { npy("$_[0]/targets.npy", '<i8', '5,', pack('q<*', 0, 1, 7, 0, 0)) }],
);
for my $case (@broken) {
    my ($what, $name, $break) = @$case;
    my $folder = tempdir(DIR => $dir);
    tensors($folder);
    $break->($folder);
    my ($got, $said) = vocab("--load $folder");
    ok($got == 2 && $said =~ /\Q$name\E/, "$name $what: exit 2, named");
    print "# exit $got: $said" unless $got == 2 && $said =~ /\Q$name\E/;
}
refuses("--load $in --tokens 5", 2, qr/--tokens/);
refuses('--ranks 0', 2, qr/--ranks: got 0, allowed 1\.\.1024/);
refuses('--no-such-option', 2, qr/no-such-option/);
refuses('--impl nothing', 2, qr/nothing.*materialized/);
refuses('--vocab 0', 2, qr/--vocab/);
refuses('--ranks 3 --tokens-per-rank 5,0', 2, qr/tokens-per-rank.*3/);
refuses('--impl ring-dtp --move activations --vocab 9000 --tile 1000', 2, qr/--tile.*1024/);
refuses('--impl materialized --tile 1024', 2, qr/--tile/);
refuses('--device cuda', 3, qr/cuda/);
refuses('--device-memory 1M --impl all', 3, qr/live set \w+ .*asked for/);
refuses('--device-memory 1M --impl ring-dtp --oom record', 0, qr/OUT OF MEMORY/);

# A verdict is of what was compared: the loss of no token is none.
refuses('--tokens 0 --pass forward --vocab 64 --hidden 16 --ranks 2 --check reference --iters 1', 0,
    qr/\A(?!.*bitwise).* off\b/s);
refuses('--tokens 0 --vocab 64 --hidden 16 --ranks 2 --impl ring-dtp --check reference --iters 1', 0, qr/bitwise/);

# Memory that ends in the middle of a pass: under AddressSanitizer, what the host held of it is not lost.
for my $memory ('200K', '250K', '300K', '400K', '500K') {
    refuses("--device-memory $memory --impl all --ranks 2 --tokens 64 --hidden 64 --vocab 512 --iters 2 "
            . '--oom record', 0, qr/OUT OF MEMORY/);
}
refuses('--tokens 1M --hidden 8K --vocab 1M --impl materialized', 3, qr/need/);
refuses('--tokens 1G --hidden 8K --vocab 1G --impl materialized', 2, qr/--vocab.*64-bit/);

done();
