"""Data: parameters of mori as it declares them; and calls of engines: class, method, number of positional arguments, keywords."""

DECLARED = {
  "mori (624002c897a3 python/mori/ops/dispatch_combine.py)": {
    "EpDispatchCombineConfig": {
      "__init__": "data_type, rank, world_size, hidden_dim, scale_dim, scale_type_size, max_token_type_size, max_num_inp_token_per_rank, num_experts_per_rank, num_experts_per_token, warp_num_per_block=8, block_num=80, max_total_recv_tokens=0, use_external_inp_buf=True, kernel_type='IntraNode', gpu_per_node=8, rdma_block_num=0, num_qp_per_pe=1, quant_type='none'"
    },
    "EpDispatchCombineOp": {
      "__init__": "config",
      "max_num_tokens_to_recv": "",
      "max_num_tokens_to_recv_per_rank": "",
      "max_num_tokens_to_send": "",
      "max_num_tokens_to_send_per_rank": "",
      "get_registered_combine_input_buffer": "dtype, hidden_dim=-1",
      "dispatch": "input, weights, scales, indices, block_num=-1, rdma_block_num=-1, warp_per_block=-1, call_local_expert_count=False, routing=None, return_routing=False",
      "dispatch_send": "input, weights, scales, indices, block_num=-1, warp_per_block=-1, call_local_expert_count=False",
      "dispatch_recv": "block_num=-1, warp_per_block=-1, call_local_expert_count=False",
      "combine": "input, weights, indices, block_num=-1, rdma_block_num=-1, warp_per_block=-1, use_external_inp_buf=-1, call_reset=False, routing=None",
      "combine_send": "input, weights, indices, block_num=-1, warp_per_block=-1",
      "combine_recv": "block_num=-1, warp_per_block=-1",
      "reset": ""
    }
  }
}

CALLED = {
  "vLLM (030ea52effcb fused_moe/prepare_finalize/mori.py, 001430048e81 device_communicators/all2all.py)": [
    ["EpDispatchCombineConfig", "__init__", 0, "rank world_size data_type hidden_dim scale_dim scale_type_size max_token_type_size max_num_inp_token_per_rank num_experts_per_rank num_experts_per_token warp_num_per_block block_num kernel_type rdma_block_num gpu_per_node"],
    ["EpDispatchCombineOp", "__init__", 1, ""],
    ["EpDispatchCombineOp", "dispatch", 4, ""],
    ["EpDispatchCombineOp", "combine", 3, ""]
  ],
  "SGLang (0202c2670711 layers/moe/token_dispatcher/moriep.py)": [
    ["EpDispatchCombineConfig", "__init__", 0, "data_type rank world_size hidden_dim scale_dim scale_type_size max_token_type_size max_num_inp_token_per_rank num_experts_per_rank num_experts_per_token warp_num_per_block block_num max_total_recv_tokens use_external_inp_buf kernel_type gpu_per_node rdma_block_num num_qp_per_pe quant_type"],
    ["EpDispatchCombineOp", "__init__", 1, ""],
    ["EpDispatchCombineOp", "dispatch", 4, "call_local_expert_count"],
    ["EpDispatchCombineOp", "dispatch_send", 4, "call_local_expert_count"],
    ["EpDispatchCombineOp", "dispatch_recv", 0, "call_local_expert_count"],
    ["EpDispatchCombineOp", "combine", 3, ""],
    ["EpDispatchCombineOp", "combine_send", 3, ""],
    ["EpDispatchCombineOp", "combine_recv", 0, ""]
  ]
}
