// Package propose derives bounds for the arguments of a tool from calls that were observed. A bound is a part of a
// condition. It is true for every observed call, and as narrow as its kind permits:
//
//   - a text that has few values, each of which occurs in several calls, is one of these values
//   - a path is in the folder that contains all observed paths
//   - a URL has the observed scheme, host and port
//   - a number is at least 0, or at least the lowest observed number if that is negative, and at most the highest
//   - a boolean has the observed values
//   - a list of texts has a bound for its elements
//   - no arguments are present other than those that were observed
//
// An argument whose values vary more has no bound, and the reason is given instead.
package propose
