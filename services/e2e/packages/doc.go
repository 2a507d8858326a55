// Package packages tests servers that npx starts, from the configuration to the running program: npm installs their
// packages from a registry of the test's own.
package packages
