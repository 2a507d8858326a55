// Package binding computes what an approval is bound to: the stored text of a call, and a digest of the call and its
// caller. Both are defined in sluice/approval/v1/binding.proto.
package binding
