// Package compose proves the deployment in deploy/ on a real Docker engine: what
// `docker compose up` starts refuses, limits, traces and keeps apart what it says.
//
// Its tests need Docker with the compose plugin, so they stand behind the build
// tag "compose", and `make e2e-compose` runs them. They bring up a project of
// their own on free ports of 127.0.0.1 and take it down again; nothing of it is
// left but images.
package compose
