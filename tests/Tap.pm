# What the tests written in Perl share: results in TAP, files that are read or written whole,
# and whether a job has left processes behind.
package Tap;
use strict;
use warnings;
use Exporter 'import';
use Time::HiRes qw(sleep);

our @EXPORT = qw(ok skip skip_all done slurp spew left_behind);
my ($count, $failed) = (0, 0);

# ok GOOD, NAME, TEXT: one result; TEXT says more where it is not as it should be.
sub ok($$;$) {
    my ($good, $name, $text) = @_;
    $count++;
    $failed++ unless $good;
    print $good ? "ok $count - $name\n" : "not ok $count - $name\n";
    print map { "# $_\n" } split /\n/, $text unless $good || !defined $text;
}

sub skip {
    my ($name, $reason) = @_;
    $count++;
    print "ok $count - $name # SKIP $reason\n";
}

# Ends a script that cannot run here.
sub skip_all {
    my ($reason) = @_;
    print "1..0 # SKIP $reason\n";
    exit 0;
}

# Ends a script: how many results there were, and 1 where one failed or there was none.
sub done {
    print "1..$count\n";
    exit($failed || !$count ? 1 : 0);
}

# The bytes of a file, none where it cannot be read.
sub slurp {
    my ($path) = @_;
    open my $file, '<:raw', $path or return '';
    local $/;
    return <$file>;
}

sub spew {
    my ($path, $bytes) = @_;
    open my $file, '>:raw', $path or die "$path: $!";
    print $file $bytes;
    close $file or die "$path: $!";
}

# The processes whose command lines have WHAT and that do not end within ten seconds.
sub left_behind {
    my ($what) = @_;
    my $found = '';
    for (1 .. 100) {
        $found = `ps -eo pid,args | grep -F -- '$what' | grep -v grep`;
        return '' if $found eq '';
        sleep 0.1;
    }
    return $found;
}

1;
