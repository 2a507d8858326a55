// Package hostile tests a mesh under attack. Agents, servers and unauthenticated clients make, all at once, the attacks
// that could exhaust the machine or evict stored state. Periods of attack and of rest alternate. The test compares the
// calls that one well-behaved agent makes during the attacks with its calls at rest.
//
// `make stress RUN=hostile` runs the test for an hour and also checks the latency. Under attack, the 99th percentile of
// the calls' latency may be at most twice the 99th percentile at rest. The test logs a line each minute. After Ctrl-C
// it ends with the results so far. `make stress RUN=hostile N=2m SLUICE_ATTACKS='X3|X8'` makes only the selected
// attacks, for two minutes.
package hostile
