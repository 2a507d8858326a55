// Package lifecycle is what may become of an approval, as sluice.approval.v1 says
// it: pure moves of one record at a given time, without a store, a network or a
// clock. A record belongs to one caller at a time.
package lifecycle
