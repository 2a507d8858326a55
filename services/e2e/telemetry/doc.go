// Package telemetry tests the traces and the metrics that a mesh exports.
package telemetry
