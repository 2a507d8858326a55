// Package compose tests the deployment in deploy/ with a real Docker engine: that the mesh started by `docker
// compose up` refuses, limits, traces and isolates as documented.
//
// Its tests need Docker with the compose plugin. They have the build tag "compose", and `make e2e-compose` runs
// them. They start a compose project of their own on free ports of 127.0.0.1 and remove it again, except for its
// images.
package compose
