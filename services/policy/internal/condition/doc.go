// Package condition evaluates the conditions of the policy language: expressions of
// the Common Expression Language (CEL, https://cel.dev) over the arguments of a
// call, which they know as `args`, a map.
//
// Beside CEL's standard library there are optionals (`args.?force.orValue(false)`)
// and decimals: `decimal(x)` makes an exact decimal of a number or of a text that
// writes one, to be compared with others by == != < <= > >=.
//
// Numbers of arguments are never rounded. One that is written as an integer and fits
// 64 bits is an int; any other below 2^53 is a double where the double's shortest
// decimal form has the same value, as has any of up to 15 digits; else it is a
// decimal, which compares with decimals alone.
//
// What an expression may cost is bounded twice: when it is compiled, by an estimate
// for arguments of [assumedSize], and while it runs, whatever the arguments are.
package condition
