#!/bin/sh
# Not in the papers: where each schedule stops paying. The links between ranks, then the one to the
# host, become slower and faster, everything else stays as the profile says.
#
# Usage: bench/tables/links.sh [OPTION]...
. "$(dirname "$0")/common.sh"

link_factors='0.00390625 0.015625 0.0625 0.25 1 4'
host_factors='0.015625 0.0625 0.25 0.5 1 4'
profile=$table_profile
case $profile in
*/* | *.conf) file=$profile ;;
*) file=${FLATPEAK_PROFILES:-profiles}/$profile.conf ;;
esac
[ -r "$file" ] || table_fail 2 "profile $file cannot be read"

# with_links NAME FACTOR KEY...: a profile whose rates of these keys are multiplied.
# shellcheck disable=SC2154 # of common.sh
with_links()
{
    table_profile=$table_folder/$1-$2.conf
    awk -v keys=" $3 " -v factor="$2" 'index(keys, " " $1 " ") { $3 *= factor } 1' "$file" >"$table_profile"
}

# The same runs on every profile; only times differ.
for factor in $link_factors; do
    with_links links "$factor" 'link_bytes_per_s network_bytes_per_s'
    run dispatch --impl alltoall,llep,pipelined-llep,relay-expert,relay-token --ranks 8 --tokens 16K --hidden 7168 --ffn 2048 \
        --experts 128 --topk 8 --routing balanced,80/16 --dtype bf16 --pass forward \
        --chunk-budget 4096 --max-chunks 10
    run vocab --impl materialized,vocab-parallel,ring-dtp --ranks 8 --tokens 16K --hidden 7168 \
        --vocab 200000 --pass forward
done
for factor in $host_factors; do
    with_links host "$factor" 'h2d_bytes_per_s d2h_bytes_per_s'
    run checkpoint --impl resident,offload-all,sco --ranks 8 --layers 16 --tokens 64K --hidden 7168 \
        --ffn 18432 --dtype bf16
    run optimizer --impl cpu,staged,offload-stream --model gpt-oss-20b --world 8 --ranks 8 --bucket 100e6 \
        --slots 2
done

# rows KEY FACTOR...: a row for each, with its rate in 1e9 bytes/s.
rows()
{
    key=$1
    shift
    for factor in "$@"; do
        awk -v key="$key" -v factor="$factor" \
            '$1 == key { printf "%s,%.4g\n", factor, $3 * factor / 1e9 }' "$file"
    done
}

tabulate <<END
title Where each schedule stops paying: time over the baseline's, by the bandwidth of the links (1e9 bytes/s, each way)

rows -
factor,link
$(rows link_bytes_per_s $link_factors)
end
name {link} GB/s
where device=sim:links-{factor}
figure pipelined-llep over llep, 80/16 | | - | [op=dispatch pipelined-llep routing=80/16 : time.median_s] / [op=dispatch llep routing=80/16 : time.median_s] | shown
figure gains less than 5 % outside of | GB/s | - | [op=dispatch pipelined-llep routing=80/16 : time.median_s] / [op=dispatch llep routing=80/16 : time.median_s] | crossing 0.95 link
figure llep over alltoall, 80/16 | | - | [op=dispatch llep routing=80/16 : time.median_s] / [op=dispatch alltoall routing=80/16 : time.median_s] | shown
figure costs more below | GB/s | - | [op=dispatch llep routing=80/16 : time.median_s] / [op=dispatch alltoall routing=80/16 : time.median_s] | crossing 1 link
figure relay-expert over alltoall, balanced | | - | [op=dispatch relay-expert routing=balanced : time.median_s] / [op=dispatch alltoall routing=balanced : time.median_s] | shown
figure costs more below | GB/s | - | [op=dispatch relay-expert routing=balanced : time.median_s] / [op=dispatch alltoall routing=balanced : time.median_s] | crossing 1 link
figure relay-token over alltoall, balanced | | - | [op=dispatch relay-token routing=balanced : time.median_s] / [op=dispatch alltoall routing=balanced : time.median_s] | shown
figure costs more below | GB/s | - | [op=dispatch relay-token routing=balanced : time.median_s] / [op=dispatch alltoall routing=balanced : time.median_s] | crossing 1 link
figure ring-dtp over materialized | | - | [op=vocab ring-dtp : time.median_s] / [op=vocab materialized : time.median_s] | shown
figure costs more than the paper's 5.1 % below | GB/s | - | [op=vocab ring-dtp : time.median_s] / [op=vocab materialized : time.median_s] | crossing 1.051 link
figure ring-dtp over vocab-parallel | | - | [op=vocab ring-dtp : time.median_s] / [op=vocab vocab-parallel : time.median_s] | shown
figure costs less below | GB/s | - | [op=vocab ring-dtp : time.median_s] / [op=vocab vocab-parallel : time.median_s] | crossing 1 link

rows -
factor,host
$(rows h2d_bytes_per_s $host_factors)
end
name {host} GB/s
where device=sim:host-{factor}
figure sco over resident | | - | [op=checkpoint sco : time.median_s] / [op=checkpoint resident : time.median_s] | shown
figure costs more than 5 % below | GB/s | - | [op=checkpoint sco : time.median_s] / [op=checkpoint resident : time.median_s] | crossing 1.05 host
figure sco over offload-all | | - | [op=checkpoint sco : time.median_s] / [op=checkpoint offload-all : time.median_s] | shown
figure offload-stream over staged | | - | [op=optimizer offload-stream : time.median_s] / [op=optimizer staged : time.median_s] | shown
figure offload-stream over the CPU's step | | - | [op=optimizer offload-stream : time.median_s] / [op=optimizer cpu : time.median_s] | shown
figure costs more below | GB/s | - | [op=optimizer offload-stream : time.median_s] / [op=optimizer cpu : time.median_s] | crossing 1 host
END
