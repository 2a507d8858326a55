// Package unraced runs the tests of packages that compute without sharing anything: with
// the race detector they would take some twenty times as long, and find nothing.
package unraced
