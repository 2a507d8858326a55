// Package condition evaluates the conditions of the policy language. These are expressions in the Common Expression
// Language (CEL, https://cel.dev). They can read the arguments of a call, which are the map `args`, the call's server,
// tool, method and URI, the caller and its delegation chain, the tool's classification, and the current time. Package
// engine uses this package.
//
// Conditions have CEL's comparisons and no arithmetic: == != < <= > >= in && || ! ?:, contains, startsWith, endsWith
// and matches for strings, size, the macros has, all and exists, and optionals (`args.?force.orValue(false)`). In
// addition, `decimal(x)` converts a number, or a string that contains a number, to an exact decimal. The following
// functions parse paths, URLs and addresses in the same way as package locator: path.within, path.base, path.ext,
// url.scheme, url.host, url.port, url.path, url.under, ip.in and email.domain.
//
// Compile refuses expressions that can mislead their author: tests on parts of a path or URL, and patterns that do not
// match a whole string. The evaluation of a condition fails for arguments that contain another spelling of a key that
// the condition reads, because a server may accept that spelling.
//
// Numbers in arguments are never rounded. A whole number that fits in 64 bits is an int or uint, however it is written.
// Any other number is a decimal. There are no doubles.
//
// The result depends only on the [Input]: maps are iterated in the order of their keys, and no bound on the evaluation
// depends on the clock. The cost of an expression is checked twice. When the expression is compiled, its estimated cost
// for arguments of the size [assumedSize] is checked. When the expression is evaluated, its actual cost is checked.
package condition
