"""policy: how many tokens may a request have? Output lengths in, a `TokenPolicy` with reasons and its price out. Pure.

lengths     output lengths as histograms, with those that a limit cut
decision    what a policy decides, and its way into the middleware's policy file
static      one given number, and what it costs
percentile  one number from the spread of the lengths (CV)
reasoning   separate budgets for thinking and answer; `models` holds the facts per model family
predicted   one number per request from predicted quantiles
drift       did the lengths change between two windows?
hysteresis  when a new number may take the place of the old one

What it must not know: the cluster, the clock, the metrics store.
"""
