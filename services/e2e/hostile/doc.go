// Package hostile tests a mesh under attack. Agents, servers and unauthenticated clients make all attacks at once that
// could exhaust the machine or evict stored state, alternating with periods of rest. The test compares the calls of one
// well-behaved agent under attack and at rest.
//
// `make stress RUN=hostile` runs the test for an hour and also checks the latency: the 99th percentile of calls may at
// most double under attack. The test logs a line each minute, and Ctrl-C ends it with the results so far. `make stress
// RUN=hostile N=2m SLUICE_ATTACKS='X3|X8'` makes some of the attacks for two minutes.
package hostile
