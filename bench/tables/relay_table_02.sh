#!/bin/sh
# RelayMoE, Table 2: what one hop moves, experts or tokens, and what its rule therefore chooses. All
# thirteen configurations of its Table 3 at 20K, 40K, 65K and 98K, micro-batch 12 on 8 ranks (12 S / 8
# tokens a rank), BF16. Printed is the formula, not its values: weights against tokens and metadata, both
# doubled in backward. Beside it what travels, with FP32 sums and gradients. A ratio below 1 lets tokens
# travel. Arithmetic on shapes: nothing is run.
#
# Usage: bench/tables/relay_table_02.sh [OPTION]...
. "$(dirname "$0")/common.sh"

configs=results/paper/relaymoe_configs.csv

# Each configuration once at all four lengths: 20480, 40960, 65536 and 98304.
plans()
{
    sed -n '/^#/d; /^name,/d; p' "$configs" | while IFS=, read -r _ _ hidden ffn experts topk _; do
        plan dispatch --plan --impl relay --ranks 8 --tokens 30720,61440,98304,147456 --hidden "$hidden" \
            --ffn "$ffn" --experts "$experts" --topk "$topk" --dtype bf16 || exit
    done
}

# Rows of the records in which the two rules choose differently.
# shellcheck disable=SC2154 # table_records is set by common.sh
disagreeing()
{
    sed -n '/"printed": *{"moves": *"\([a-z]*\)".*"true": *{"moves": *"\1"/d
        s/.*"tokens": *\([0-9]*\), *"hidden": *\([0-9]*\), *"ffn": *\([0-9]*\), *"experts": *\([0-9]*\), *"topk": *\([0-9]*\).*"printed": *{"moves": *"\([a-z]*\)".*"true": *{"moves": *"\([a-z]*\)".*/\1,\2,\3,\4,\5,\6,\7/p' \
        "$table_records" | sort -u
}

plans || exit

# figures LABEL TOKENS: the lines of one length.
figures()
{
    at="tokens=$2 hidden={hidden} ffn={ffn} experts={experts} topk={top_k}"
    cat <<END
figure $1: tokens, printed | MiB | - | [$at : plan.relay.hop_bytes.printed.tokens.forward] / MiB | shown
figure $1: tokens, true | MiB | - | [$at : plan.relay.hop_bytes.true.tokens.forward] / MiB | shown
figure $1: tokens over experts, printed | | - | [$at : plan.relay.hop_bytes.printed.tokens.forward] / [$at : plan.relay.hop_bytes.printed.experts.forward] | shown
figure $1: tokens over experts, true, both passes | | - | ([$at : plan.relay.hop_bytes.true.tokens.forward] + [$at : plan.relay.hop_bytes.true.tokens.backward]) / ([$at : plan.relay.hop_bytes.true.experts.forward] + [$at : plan.relay.hop_bytes.true.experts.backward]) | shown
END
}

tabulate <<END
title RelayMoE, Table 2: bytes of one hop, 8 ranks, micro-batch 12, BF16
note below 1 tokens travel, from 1 on experts; metadata is an id and a weight a slot, 8 k bytes a token
note at 40K the paper's Figure 9 runs E384 and H2048 with travelling experts and finds them slower than all-to-all: its own rule lets tokens travel there

rows $configs
name {name}
where op=dispatch relay
figure experts, forward | MiB | - | [tokens=30720 hidden={hidden} ffn={ffn} experts={experts} topk={top_k} : plan.relay.hop_bytes.printed.experts.forward] / MiB | shown
figure experts, true, backward | MiB | - | [tokens=30720 hidden={hidden} ffn={ffn} experts={experts} topk={top_k} : plan.relay.hop_bytes.true.experts.backward] / MiB | shown
$(figures 20K 30720)
$(figures 40K 61440)
$(figures 65K 98304)
$(figures 98K 147456)

rows -
tokens,hidden,ffn,experts,topk,printed,true
$(disagreeing)
end
name E{experts} F{ffn} K{topk}, {tokens} tokens: {printed} by the printed rule, {true} by the true one
where op=dispatch relay tokens={tokens} hidden={hidden} ffn={ffn} experts={experts} topk={topk}
figure the rules disagree: tokens over experts, printed | | - | [ : plan.relay.hop_bytes.printed.tokens.forward] / [ : plan.relay.hop_bytes.printed.experts.forward] | shown
figure tokens over experts, true | | - | ([ : plan.relay.hop_bytes.true.tokens.forward] + [ : plan.relay.hop_bytes.true.tokens.backward]) / ([ : plan.relay.hop_bytes.true.experts.forward] + [ : plan.relay.hop_bytes.true.experts.backward]) | shown
END
