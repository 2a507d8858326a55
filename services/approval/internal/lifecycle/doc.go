// Package lifecycle implements the states of an approval that sluice.approval.v1 describes. Its functions move one
// record at a given time, without a store, a network or a clock. A record is not safe for concurrent use.
package lifecycle
