// Package lifecycle implements the states of an approval that sluice.approval.v1 describes. Its functions change one
// record and take the current time as an argument. They use no store, no network and no clock. A record is not safe for
// concurrent use.
//
// A transition, which the API calls a move, is a change to an approval that is recorded in its history. A transition
// may change the state, or only the votes or the terms.
package lifecycle
