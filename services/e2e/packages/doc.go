// Package packages tests servers that are started with npx, from the configuration to the running program. npm
// installs their packages from a registry that the test serves.
package packages
