// Package condition evaluates conditions in the policy language, which are expressions in the Common Expression
// Language (CEL, https://cel.dev). Conditions can read the arguments of a call in the map `args`. They can also read
// the call's server, tool, method and URI, the caller and its delegation chain, the tool's classification, and the
// current time. Package engine uses this package.
//
// Conditions have CEL's comparisons, but no arithmetic. They can use the operators == != < <= > >= in && || ! ?: and
// the macros has, all and exists. For strings, they can use the functions contains, startsWith, endsWith and matches.
// They can also use size and optionals (`args.?force.orValue(false)`). In addition, `decimal(x)` converts a number, or
// a string that contains a number, to an exact decimal. The functions path.within, path.base, path.ext, url.scheme,
// url.host, url.port, url.path, url.under, ip.in and email.domain parse paths, URLs and addresses with package locator.
//
// Compile refuses expressions that can mislead their author. Examples are tests on parts of a path or URL, and patterns
// that do not match a whole string. A condition can't be evaluated if the arguments contain a different spelling of a
// key that the condition reads, because a server might accept that spelling.
//
// Numbers in arguments are never rounded. A whole number that fits in 64 bits is an int or uint, in any notation. Any
// other number is a decimal. There are no doubles.
//
// The result depends only on the [Input]. Therefore maps are iterated in the order of their keys, and an evaluation is
// limited by its cost and not by its time. The cost is checked twice. Compile estimates it for arguments of the size
// [assumedSize], and Evaluate tracks the actual cost.
package condition
