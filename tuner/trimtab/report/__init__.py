"""The report: one HTML file that tells what a tuner did, to somebody who was not there. Reads plain JSON; everything in
it is untrusted text. No script, no outside request.
"""
