// Package approvals tests calls that wait for people: what approvers see and decide, what callers receive, and how
// official clients wait.
package approvals
