// Package bench measures the whole path of a call against its floor: what the same
// call costs through Go's own reverse proxy, which decides nothing. Every cell runs
// as processes of its own on loopback; rounds are interleaved, so that what disturbs
// the machine disturbs all cells alike, and what counts is the ratio within a round.
package bench
