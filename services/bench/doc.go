// Package bench measures the whole path of a call against its floor: the same call through Go's own reverse proxy,
// which decides nothing. Each cell runs in processes of its own on loopback. Rounds are interleaved, so that
// disturbances of the machine affect all cells alike, and the ratio within a round is the result.
package bench
