"""predict: learns quantiles of output length from what is known before a request runs, and exports them for the engine.

samples    the middleware's opt-in log and public traces in
split      by time: train, validation, calibration, test
network    the torch part: quantile regression with pinball loss
fitted     the trained model: calibration on held-out requests, and the small file for the engine
evaluate   against the percentile policy; refuses a model that is no better
censored   quantiles and losses where limits cut lengths

torch is imported where it is needed and only there: `show` and `evaluate` work without it.
"""
