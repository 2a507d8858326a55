// Package condition evaluates the conditions of the policy language: expressions of
// the Common Expression Language (CEL, https://cel.dev) over the arguments of a
// call, which they know as `args`, a map.
//
// Of CEL they have what compares and nothing that calculates: == != < <= > >= in && ||
// ! ?:, texts' contains, startsWith, endsWith and matches, size, the macros has, all
// and exists, and optionals (`args.?force.orValue(false)`). To these come decimals:
// `decimal(x)` makes an exact decimal of a number or of a text that writes one; and what
// reads paths, URLs and addresses, as package locator does: path.within, path.base,
// path.ext, url.scheme, url.host, url.port, url.path, url.under, ip.in, email.domain.
//
// What could mislead is refused when it is compiled: tests of parts of a text that is a
// path or URL, patterns that are not about all of a text. And no condition holds for
// arguments of which a key may be taken for one that it reads and is not it.
//
// Numbers of arguments are never rounded. One whose value is whole and fits 64 bits is
// an int or uint, however it is written; any other is a decimal. There are no doubles.
//
// The same arguments always have the same answer: maps are gone through in the order of
// their keys, and nothing is bounded by the clock. What an expression may cost is
// bounded twice: when it is compiled, by an estimate for arguments of [assumedSize],
// and while it runs, whatever the arguments are.
package condition
