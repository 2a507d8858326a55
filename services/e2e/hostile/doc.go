// Package hostile tests a mesh under attack. Agents, servers and unauthenticated clients do everything that could
// exhaust the machine or evict stored state, all at once, in turns with periods of rest. The test compares how one
// well-behaved agent fares in both.
//
// `make hostile` runs it for an hour and also judges the latency: the 99th percentile of calls may at most double.
// It logs a line each minute, and Ctrl-C ends it with the results so far. `make hostile HOSTILE=2m ATTACKS='X3|X8'`
// runs some of the attacks.
package hostile
