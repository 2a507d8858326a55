// Package binding computes what an approval is bound to: the stored text of a call, and the digest of the call and
// its caller, as sluice/approval/v1/binding.proto defines them.
package binding
