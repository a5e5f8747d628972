#!/usr/bin/env perl
# Every kernel runs: the tests tests/cuda_*, here with threads, blocks and streams in other orders
# than by themselves, launch each __global__ function of kernels/ and device/, and each instance of a
# template that the program holds.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $dir = tempdir(CLEANUP => 1);
my @tests = grep { -f && -x } glob "$build/emu/tests/cuda_*";

skip_all('the emulator is not built here (make showconfig)') unless @tests;

# The names of the kernels in the sources.
sub kernels_written {
    my %names;
    for my $path (glob('kernels/*.cu kernels/*.cuh device/*.cu device/*.h')) {
        my $text = slurp($path);
        $names{$2} = $path
            while $text =~ /__global__\s+void\s+
                            (?:__launch_bounds__\s*(\((?:[^()]|(?1))*\))\s*)?
                            (\w+)\s*\(/gx;
    }
    return %names;
}

# Of mangled names, "NAME<arguments>" without what a template says of its result or parameters.
sub readable {
    my @mangled = @_;
    return () unless @mangled;
    open my $list, '>', "$dir/mangled" or die;
    print $list "$_\n" for @mangled;
    close $list;
    return map { chomp; s/^void //; s/\([^()]*(?:\([^()]*\)[^()]*)*\)$//; $_ } `c++filt <$dir/mangled`;
}

sub base_name {
    my ($name) = @_;
    $name =~ s/<.*//;
    return $name;
}

for my $test (@tests) {
    (my $name = $test) =~ s{.*/}{};
    local $ENV{CUDA_EMU_ORDER} = 'reverse';
    local $ENV{CUDA_EMU_STREAMS} = 'random:1';
    local $ENV{CUDA_EMU_COVERAGE} = "$dir/ran";
    my $status = system("$test >$dir/out 2>&1");
    ok($status == 0, "$name passes in the reverse order of threads");
    print map { "# $_\n" } split /\n/, slurp("$dir/out") if $status;
}

# What the emulator cannot follow.
for my $path (glob('kernels/*.cu kernels/*.cuh device/*.cu device/*.h tests/*.cu tests/*.cuh')) {
    next if $path eq 'kernels/launch.cuh';
    my @lines = grep { /<<<|__shared__/ } split /\n/, slurp($path);
    ok(!@lines, "$path: no triple chevrons and no __shared__") if @lines;
}

my %written = kernels_written();
my %ran = map { $_ => 1 } readable(split ' ', slurp("$dir/ran"));
my %ran_names = map { base_name($_) => 1 } keys %ran;
my @idle = grep { !$ran_names{$_} } sort keys %written;
ok(keys %written > 0 && !@idle, 'each kernel of the sources runs');
print "# never launched: $_ ($written{$_})\n" for @idle;

my @functions = map { (split)[2] } grep { /^\S+ [tTwW] / } `nm $tests[0]`;
my %held = map { $_ => 1 } grep { $written{base_name($_)} } readable(grep { !/\./ } @functions);
@idle = grep { !$ran{$_} } sort keys %held;
ok(keys %held > 0 && !@idle, 'each instance of a kernel runs');
print "# never launched: $_\n" for @idle;

my $kernels = grep { $ran_names{$_} } keys %written;
my $instances = grep { $ran{$_} } keys %held;
printf "# kernels that ran: %d of %d, instances %d of %d (%.1f %%)\n", $kernels, scalar keys %written,
    $instances, scalar keys %held, 100 * $instances / (keys(%held) || 1);
done();
