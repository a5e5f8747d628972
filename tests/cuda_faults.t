#!/usr/bin/env perl
# The emulator of CUDA sees faults: twenty programs, each right and with one planted fault
# (tests/cuda_emu/faults.cu). The right one must pass in every order of threads, blocks and streams;
# the planted fault must be caught in one of them: by a result that differs, by the emulator, or by a
# sanitizer where the build has one.
use strict;
use warnings;
use File::Temp qw(tempdir);
use FindBin;
use lib $FindBin::Bin;
use Tap;

my $build = $ENV{BUILDDIR} || 'build';
my $program = "$build/emu/tests/cuda_emu/faults";
my $dir = tempdir(CLEANUP => 1);

skip_all('the emulator is not built here (make showconfig)') unless -x $program;

# Threads and streams, each in the orders that find most, then others.
my @settings = (
    [forward => 'late'],
    [reverse => 'early'],
    ['random:1' => 'random:1'],
    ['random:2' => 'random:2'],
    ['random:3' => 'random:5'],
);

# How a run ended: '' when its result was right, else by what the fault was caught.
sub run {
    my ($arguments, $order, $streams) = @_;
    local $ENV{CUDA_EMU_ORDER} = $order;
    local $ENV{CUDA_EMU_STREAMS} = $streams;
    my $status = system("$program $arguments >$dir/out 2>&1");
    return '' if $status == 0;
    open my $file, '<', "$dir/out" or die;
    local $/;
    my $text = <$file>;
    return 'Bail out: ' . $text if $text =~ /Bail out/;
    return 'the emulator' if $text =~ /^cuda emulator: /m;
    return 'a sanitizer' if $text =~ /Sanitizer|runtime error:/;
    return 'the result' if $status >> 8 == 1;
    return 'the processor';
}

my $caught = 0;
for my $line (`$program`) {
    my ($name, $seen_by) = split ' ', $line;
    my $wrong = join '; ', grep { $_ } map { run($name, @$_) } @settings;
    (my $words = $name) =~ tr/_/ /;
    ok($wrong eq '', "$words: right in every order" . ($wrong && " ($wrong)"));
    my ($by, $in) = ('', '');
    for my $setting (@settings) {
        $by = run("$name planted", @$setting);
        $in = "threads $setting->[0], streams $setting->[1]";
        last if $by;
    }
    if (!$by && $seen_by eq 'sanitizer') {
        skip($words, 'only a sanitizer sees it');
        next;
    }
    $caught++ if $by && $by !~ /^Bail/;
    ok($by && $by !~ /^Bail/, "$words: planted" . ($by ? ", caught by $by ($in)" : ', not caught'));
}
ok($caught >= 18, "$caught planted faults caught; at least 18 must be");
done();
