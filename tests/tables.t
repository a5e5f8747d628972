#!/usr/bin/env perl
# bench/tables from outside: options, verdicts, and that the scripts only join records. One byte more in
# one schedule's allocation, and half a link, change exactly the cells that depend on them.
use strict;
use warnings;
use File::Temp qw(tempdir);
use Cwd qw(abs_path getcwd);
use FindBin;
use lib $FindBin::Bin;
use Tap qw(ok done spew);

my $build = abs_path($ENV{BUILDDIR} || 'build');
my $dir = tempdir(CLEANUP => 1);

# Runs a script; exit status and both outputs together.
sub table {
    my ($arguments, $environment) = @_;
    my $text = `${\($environment // '')} BUILDDIR=\${BUILDDIR:-$build} bench/tables/$arguments 2>&1`;
    return ($? >> 8, $text);
}

sub slurp {
    my ($path) = @_;
    open my $file, '<', $path or die "$path: $!";
    local $/;
    return <$file>;
}

# One line of CSV, cut.
sub fields {
    my ($line) = @_;
    my @fields;
    while ($line =~ /\G(?:"((?:[^"]|"")*)"|([^,]*))(,|$)/g) {
        push @fields, $1 // $2;
        last if $3 eq '';
    }
    return @fields;
}

# {figure}{row}: our figures of a table in CSV.
sub cells {
    my ($csv) = @_;
    my %cells;
    for (split /\n/, $csv) {
        my @field = fields($_);
        $cells{$field[2]}{$field[1]} = join ' ', @field[5 .. 8] if @field > 8 && $field[0] ne 'table';
    }
    return \%cells;
}

# The figures of which some cell differs.
sub changed {
    my ($before, $after) = @_;
    my %changed;
    for my $figure (keys %$before) {
        for my $row (keys %{$before->{$figure}}) {
            $changed{$figure} = 1 if $before->{$figure}{$row} ne ($after->{$figure}{$row} // 'gone');
        }
    }
    return join "\n", sort keys %changed;
}

# The figures of a script whose expression for ours matches.
sub depending {
    my ($script, $pattern) = @_;
    my %depending;
    for (split /\n/, slurp("bench/tables/$script")) {
        next unless /^figure (.*)/;
        my @part = map { s/^\s+|\s+$//gr } split /\|/, $1;
        $depending{$part[0]} = 1 if $part[3] =~ $pattern;
    }
    return join "\n", sort keys %depending;
}

# ---- options -----------------------------------------------------------------------------------------

for (['table_10.sh --divice sim', 2, qr/option --divice: unknown; allowed --device/],
    ['table_10.sh --device gpu', 2, qr/got 'gpu', allowed sim\[:PROFILE\], cuda/],
    ['table_10.sh --device', 2, qr/needs a value/],
    ['table_10.sh --device sim:nowhere', 3, qr/nowhere/],
    ['table_10.sh --from ' . $dir, 3, qr/cannot be read/],
    ['table_10.sh --help', 0, qr/Table 10.*--save FOLDER/s],
    ['figure_06_07.sh --help', 0, qr/Figures 6 and 7.*--save FOLDER/s]) {
    my ($arguments, $status, $says) = @$_;
    my ($got, $text) = table($arguments);
    ok($got == $status && $text =~ $says, "$arguments: exit $status", "exit $got: $text");
}

# ---- what is printed ---------------------------------------------------------------------------------

my ($status, $csv) = table("table_10.sh --csv --save $dir/sim");
ok($status == 0, 'Table 10 is printed, and what shapes decide equals the printed digits', $csv);
ok($csv =~ /^table,row,figure,unit,paper,ours,low,high,measured,verdict,why$/m, 'CSV has a heading');
my $cells = cells($csv);
ok($csv =~ /increment, ring-dtp",GiB,9.6841,3.58\d+,,,,better/, 'fewer bytes are better', $csv);
($status, my $again) = table("table_10.sh --csv --from $dir/sim");
ok($status == 0 && $again eq $csv, 'the same records give the same table');
($status, my $text) = table("table_10.sh --save $dir/sim");
ok($status == 2 && $text =~ /exists/, 'kept records are never added to');
($status, $text) = table("table_10.sh --from $dir/sim");
ok($text =~ /^ +paper +ours +range +measured +difference +verdict$/m, 'paper, ours and measured side by side');

# Measured on eight of the paper's GPUs: a doctored copy of the simulated records.
my $records = slurp("$dir/sim/table_10.jsonl");
mkdir "$dir/cuda";
spew("$dir/cuda/table_10.jsonl", $records . $records =~ s/"device":"sim:[^"]*"/"device":"cuda:NVIDIA H200"/gr);
($status, $again) = table("table_10.sh --csv --from $dir/cuda");
ok($again =~ /increment, ring-dtp",GiB,9.6841,(3.58\d+),,,\1,better/, 'a measured figure has its own column',
    $again);

# ---- one byte ----------------------------------------------------------------------------------------

# The program with one byte more in each of ring-dtp's tiles breaks its closed form, as it must; its
# records are what matters here.
mkdir "$dir/byte";
mkdir "$dir/byte/bin";
symlink "$build/bin/tabulate", "$dir/byte/bin/tabulate";
spew("$dir/byte/bin/vocab", "#!/bin/sh\n\"$build/tests/vocab_one_byte\" \"\$@\"\necho \$? >>$dir/byte/status\nexit 0\n");
chmod 0755, "$dir/byte/bin/vocab";
($status, $again) = table('table_10.sh --csv', "BUILDDIR=$dir/byte");
ok(slurp("$dir/byte/status") =~ /^1$/m, 'a byte more than the closed form says is a failed case');
my $changed = changed($cells, cells($again));
my $expected = depending('table_10.sh', qr/ring-dtp : memory\.(?!resident|by_live_set\.weights)/);
ok($changed eq $expected && $changed ne '',
    'one byte changes exactly the cells that hold it', "changed:\n$changed\nexpected:\n$expected");

# ---- half a link -------------------------------------------------------------------------------------

mkdir "$dir/profiles";
spew("$dir/profiles/h200-8.conf",
    slurp('profiles/h200-8.conf') =~ s/^(link_bytes_per_s\s*=\s*)(\S+)/$1 . $2 \/ 2/mer);
for (['table_11.sh', qr/ring-dtp : time/], ['table_10.sh', qr/: time/]) {
    my ($script, $pattern) = @$_;
    my (undef, $before) = table("$script --csv");
    my (undef, $after) = table("$script --csv", "FLATPEAK_PROFILES=$dir/profiles");
    $changed = changed(cells($before), cells($after));
    $expected = depending($script, $pattern);
    ok($changed eq $expected, "$script: half a link changes exactly the times of what sends",
        "changed:\n$changed\nexpected:\n$expected");
}

done();
