// Package condition evaluates the conditions of the policy language: expressions of the Common Expression Language
// (CEL, https://cel.dev) over the arguments of a call, which are the map `args`. Package engine uses it.
//
// Conditions have the comparisons of CEL and no arithmetic: == != < <= > >= in && || ! ?:, contains, startsWith,
// endsWith and matches of strings, size, the macros has, all and exists, and optionals (`args.?force.orValue(false)`).
// In addition, `decimal(x)` makes an exact decimal of a number or of a string that contains one, and these functions
// read paths, URLs and addresses as package locator does: path.within, path.base, path.ext, url.scheme, url.host,
// url.port, url.path, url.under, ip.in, email.domain.
//
// Compile refuses what could mislead: tests of parts of a path or URL, and patterns that do not match a whole string.
// No condition holds for arguments with a key that could be taken for a key that the condition reads.
//
// Numbers of arguments are never rounded. A whole number that fits 64 bits is an int or uint, however it is written;
// any other number is a decimal. There are no doubles.
//
// The same arguments always have the same result: maps are iterated in the order of their keys, and no bound depends
// on the clock. The cost of an expression is bounded twice: by an estimate for arguments of [assumedSize] when it is
// compiled, and while it runs on any arguments.
package condition
