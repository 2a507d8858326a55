// Package binding makes of a call what an approval is bound to: the text that is
// kept, and the digest of the call and its caller, as
// sluice/approval/v1/binding.proto defines them.
package binding
