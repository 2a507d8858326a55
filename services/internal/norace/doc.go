// Package norace runs tests without the race detector. It is for packages that compute without concurrency: with the
// race detector their tests would take about twenty times as long and detect nothing.
package norace
