"""One limit for thinking and answer together against a budget for each. Lengths only, nothing is simulated."""

from __future__ import annotations

import numpy as np
from claims_base import Answer, Lengths, Report, Size, interval, table

#: made up: a model that thinks 1,500 tokens on average and answers in 300
THINKING, ANSWER = Lengths(1500, 1.0, 20_000), Lengths(300, 0.5, 4096)
#: the answer's share of the limit: few answers are longer
ANSWER_QUANTILE = 0.99
LIMITS = (1024, 2048, 4096, 8192)


def coupling(size: Size) -> Report:
    rows = []
    whole = {}
    for limit in LIMITS:
        common, missing, apart, cut = [], [], [], []
        for seed in range(size.seeds):
            rng = np.random.default_rng(seed)
            thinking, answer = THINKING.draw(rng, size.requests), ANSWER.draw(rng, size.requests)
            budget = limit - int(np.quantile(answer, ANSWER_QUANTILE))
            common.append(float((thinking + answer <= limit).mean()))
            missing.append(float((thinking >= limit).mean()))
            apart.append(float((answer <= limit - budget).mean()))
            cut.append(float((thinking > budget).mean()))
        whole[limit] = (interval(common), interval(apart), interval(cut))
        rows.append(
            (limit, interval(common).share(), interval(missing).share(), *(i.share() for i in whole[limit][1:]))
        )
    head = ("limit", "together: whole answer", "no answer", "apart: whole answer", "thinking cut")
    one, two, cut_share = whole[2048]
    return Report(
        (table("Thinking of mean 1500 and CV 1, answers of mean 300", head, rows),),
        (
            Answer(
                "coupling",
                "holds" if all(apart.low > common.high for common, apart, _ in whole.values()) else "depends",
                f"limit 2048: {one.share()} of the answers come whole, {two.share()} with separate budgets, which cut "
                f"{cut_share.share()} of the thinking",
            ),
        ),
    )
