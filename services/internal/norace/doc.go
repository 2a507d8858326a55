// Package norace runs tests without the race detector. It is for packages without concurrency. With the race detector,
// their tests would take about twenty times as long and would not find more problems.
package norace
