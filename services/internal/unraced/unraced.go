// Package unraced runs tests without the race detector, for packages that compute without concurrency: with it they
// would take about twenty times as long, and find nothing.
package unraced
