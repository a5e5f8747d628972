# What all gnuplot plots share. Set before: out (file without extension), format (svg or png),
# width, height (pixels).
#
# Readable in black and white and to the colour-blind: the colours are Okabe and Ito's, and no two
# things are told apart by colour alone (patterns of bars, shapes of points, dashes of lines).
# Measured is solid, simulated or computed is dashed and hollow.
if (format eq "svg") {
    set terminal svg size width,height font "sans-serif,13" background "white" noenhanced
} else {
    set terminal pngcairo size 2*width,2*height fontscale 2 linewidth 2 font "sans-serif,9" \
        background "white" noenhanced
}
set output out.".".format
set datafile separator ","
set datafile missing ""
array colour[8] = ["#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", \
    "#F0E442"]
array filled[8] = [7, 5, 9, 11, 13, 15, 7, 5]
array hollow[8] = [6, 4, 8, 10, 12, 14, 6, 4]
# Fill patterns of bars; 3 is solid, 0 empty.
array pattern[8] = [3, 4, 5, 2, 6, 7, 1, 0]
number(i) = 1 + (i % 8)
# A list of names is one string of words, in which "~" stands for a space.
spaced(text) = (strstrt(text, "~") ? text[1:strstrt(text, "~") - 1]." ".\
    spaced(text[strstrt(text, "~") + 1:]) : text)
name_in(list, i) = spaced(word(list, i + 1))
gib = 1073741824.0
mib = 1048576.0
set grid ytics lc rgb "#dddddd" lw 0.5
set border 3 lc rgb "#444444"
set tics nomirror out
set key outside right top vertical Left reverse
