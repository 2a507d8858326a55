// Package packages tests stdio servers that are started with npx. npm installs their packages from a registry that the
// test serves.
package packages
