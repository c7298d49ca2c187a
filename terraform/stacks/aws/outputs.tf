output "fleet" {
  description = "The machines, for `coderack fleet write`."
  value = {
    version = 1
    stack   = "aws"
    nodes   = concat(module.gpu_nodes.nodes, [module.ops_node.node])
  }
}
