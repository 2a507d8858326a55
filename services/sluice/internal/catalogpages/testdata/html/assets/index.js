"use strict";
const sluiceCatalogue = {version: 1, servers: [
["claude-flow","claude-flow"],
["shop","shop"],
], tools: [
[0,"wasm_agent_export",18,"Export a WASM agent's full state (config, filesystem, conversation) as JSON."],
[0,"wasm_agent_is_stopped",9,"Check whether a WASM agent has reached its stop condition (max turns or explicit stop)."],
[0,"wasm_agent_todos",9,"Get the structured todo list of a WASM agent as JSON."],
[1,"../Odd name",1344,"Not classified at all.","odd-name~3386115b862cf8621d1817afd8d4df3a"],
[1,"refund",997,"Give money back."],
]};
