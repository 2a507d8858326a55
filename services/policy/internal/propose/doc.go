// Package propose derives bounds for the arguments of a tool from observed calls. A bound is a part of a condition. It
// limits an argument, and is true for every observed call. Depending on the observed values, the bound requires:
//
//   - one of the observed values, if a text has few values and each occurs in several calls
//   - a path in the folder that contains all observed paths
//   - a URL with the observed scheme, host and port
//   - a number between the lower limit and the highest observed number, where the lower limit is 0 or the lowest
//     observed number if that is negative
//   - one of the observed booleans
//   - a list of texts in which each element satisfies a bound for texts
//
// Another bound forbids all arguments that do not occur in the observed calls. If the values of an argument vary too
// much for these bounds, the argument has no bound, and a note says why.
package propose
