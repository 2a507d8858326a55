// Package compose tests the deployment in deploy/ with a real Docker engine. The mesh that `docker compose up` starts
// must refuse calls, limit them, trace them and isolate its containers as documented.
//
// The tests need Docker with the compose plugin. They have the build tag "compose", and `make e2e-compose` runs them.
// They start a separate compose project on free ports of 127.0.0.1, and remove all of it except its images.
package compose
