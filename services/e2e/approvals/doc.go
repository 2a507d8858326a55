// Package approvals tests calls that need approval: what approvers see and decide, what callers receive, and how
// official clients wait.
package approvals
