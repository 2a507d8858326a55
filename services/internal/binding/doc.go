// Package binding computes the values to which an approval is bound. These are the stored params of a call, and a
// digest of the call and its caller. sluice/approval/v1/binding.proto defines both.
package binding
